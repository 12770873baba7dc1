//! An editor's prompt as the text of a run: what was embedded comes first, so that the person's own
//! words are the last. It never leaves a part out silently.

use agent_client_protocol::Error;
use agent_client_protocol::v1::schema::{ContentBlock, EmbeddedResourceResource};

use crate::failure::invalid;

/// The text of a prompt.
pub(crate) fn text_of(blocks: &[ContentBlock]) -> Result<String, Error> {
    let mut context = String::new();
    let mut words = String::new();
    for block in blocks {
        match block {
            ContentBlock::Text(text) => words.push_str(&text.text),
            ContentBlock::ResourceLink(link) => words.push_str(&mention(&link.name, &link.uri)),
            ContentBlock::Resource(resource) => match &resource.resource {
                EmbeddedResourceResource::TextResourceContents(text) => {
                    words.push_str(&mention(name_of(&text.uri), &text.uri));
                    context.push_str(&embedded(&text.uri, &text.text));
                }
                _ => return Err(invalid("an embedded resource must be text")),
            },
            ContentBlock::Image(_) | ContentBlock::Audio(_) => {
                return Err(invalid(
                    "pictures and sounds can't be part of a prompt; link to the file instead",
                ));
            }
            _ => return Err(invalid("the prompt has a part of an unknown kind")),
        }
    }
    if words.trim().is_empty() {
        return Err(invalid("the prompt has no text"));
    }
    Ok(context + &words)
}

fn mention(name: &str, uri: &str) -> String {
    format!("[{name}]({uri})")
}

fn name_of(uri: &str) -> &str {
    uri.rsplit('/').find(|part| !part.is_empty()).unwrap_or(uri)
}

fn embedded(uri: &str, text: &str) -> String {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("<context ref=\"{uri}\">\n{text}{end}</context>\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn text(blocks: &Value) -> Result<String, Error> {
        let blocks: Vec<ContentBlock> = serde_json::from_value(blocks.clone()).unwrap();
        text_of(&blocks)
    }

    #[test]
    fn texts_links_and_embedded_files_become_one_text() {
        let blocks = json!([
            {"type": "text", "text": "explain "},
            {"type": "resource", "resource": {"uri": "file:///w/a.rs", "text": "fn a() {}"}},
            {"type": "text", "text": " and "},
            {"type": "resource_link", "uri": "file:///w/b.rs", "name": "b.rs"},
        ]);
        let expected = "<context ref=\"file:///w/a.rs\">\nfn a() {}\n</context>\n\n\
                        explain [a.rs](file:///w/a.rs) and [b.rs](file:///w/b.rs)";
        assert_eq!(text(&blocks).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_said_in_text_is_refused() {
        let image = json!({"type": "image", "data": "aGk=", "mimeType": "image/png"});
        let blob = json!({"type": "resource", "resource": {"uri": "file:///x", "blob": "aGk="}});
        for blocks in [
            json!([]),
            json!([{"type": "text", "text": " \n"}]),
            json!([image]),
            json!([blob]),
        ] {
            let error = text(&blocks).unwrap_err();
            assert_eq!(i32::from(error.code), -32602, "{blocks}");
        }
    }
}
