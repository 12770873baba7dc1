use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(value: &Value) -> Result<GitWorkspace, Vec<FieldError>> {
    GitWorkspace::read(value.as_object().unwrap())
}

fn paths(value: &Value) -> Vec<String> {
    let errors = read(value).unwrap_err();
    errors.into_iter().map(|error| error.path).collect()
}

#[test]
fn urls_say_how_they_are_reached() {
    for (url, transport) in [
        ("https://example.com/a/b.git", Transport::Https),
        ("HTTPS://example.com:8443/a", Transport::Https),
        ("http://example.com/a", Transport::Http),
        ("ssh://git@example.com:2222/a/b", Transport::Ssh),
        ("ssh://[::1]/a", Transport::Ssh),
        ("git@example.com:a/b.git", Transport::Ssh),
        ("example.com:a/b", Transport::Ssh),
    ] {
        let source = read(&json!({"url": url})).unwrap().source;
        let expected = Source::Remote {
            url: url.to_owned(),
            transport,
        };
        assert_eq!(source, expected);
    }
    for url in ["file:///srv/a.git", "file://localhost/srv/a.git"] {
        let source = read(&json!({"url": url})).unwrap().source;
        assert_eq!(source, Source::Directory("/srv/a.git".to_owned()));
    }
}

#[test]
fn a_url_with_a_credential_or_a_trick_is_refused_without_being_repeated() {
    for url in [
        "https://user:hunter2@example.com/a",
        "https://hunter2@example.com/a",
        "ssh://git:hunter2@example.com/a",
        "https://example.com/a?token=hunter2",
        "https://example.com/a#hunter2",
        "git:hunter2@example.com:a",
        "https://example.com@hunter2:x@y/a",
    ] {
        let errors = read(&json!({"url": url})).unwrap_err();
        assert_eq!(errors.len(), 1, "{url}");
        assert_eq!(errors[0].path, "url");
        assert!(!errors[0].message.contains("hunter2"), "{url}");
    }
    for url in [
        "ext::sh -c id",
        "ext::sh",
        "git://example.com/a",
        "ftp://example.com/a",
        "ssh://-oProxyCommand=id/a",
        "-oProxyCommand=id:a",
        "user@-oProxyCommand=id:a",
        "host:-x",
        "https:///a",
        "https://example.com",
        "https://example.com/",
        "file://elsewhere/a",
        "file://a",
        "/srv/a.git",
        "a.git",
        "https://exa mple.com/a",
        "https://example.com/a\nb",
        "",
    ] {
        assert_eq!(paths(&json!({"url": url})), ["url"], "{url}");
    }
}

#[test]
fn there_is_one_source_and_one_start() {
    assert_eq!(paths(&json!({})), ["url"]);
    assert_eq!(paths(&json!({"url": null})), ["url"]);
    assert_eq!(paths(&json!({"url": 7})), ["url"]);
    assert_eq!(paths(&json!({"url": "h:a", "path": "/a"})), ["path"]);
    let both = json!({"path": "/a", "ref": "v1", "branch": "main"});
    assert_eq!(paths(&both), ["branch"]);
    assert_eq!(paths(&json!({"path": "/a", "reff": "v1"})), ["reff"]);
    let read = read(&json!({"path": "/a", "branch": "main", "depth": 1})).unwrap();
    assert_eq!(read.start, Start::Branch("main".to_owned()));
    assert_eq!(read.depth, Some(1));
}

#[test]
fn refs_are_names_and_no_expressions() {
    for name in [
        "main",
        "feature/a-b",
        "v1.2.3",
        "0f3c",
        "a@b",
        "größe",
        "wip+1",
    ] {
        let start = read(&json!({"path": "/a", "ref": name})).unwrap().start;
        assert_eq!(start, Start::Ref(name.to_owned()));
    }
    for name in [
        "-x",
        "--upload-pack=id",
        "a..b",
        "a~1",
        "a^{tree}",
        "@",
        "a@{1}",
        "a:b",
        "a b",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a/.b",
        "a.lock",
        "a.",
        "a*",
        "a?",
        "a[b",
        "a\\b",
        "a\u{7f}",
    ] {
        assert_eq!(
            paths(&json!({"path": "/a", "ref": name})),
            ["ref"],
            "{name}"
        );
        assert_eq!(paths(&json!({"path": "/a", "branch": name})), ["branch"]);
    }
}

#[test]
fn depths_and_subdirectories_are_bounded() {
    for depth in [
        json!(0),
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(1_000_001),
    ] {
        assert_eq!(paths(&json!({"path": "/a", "depth": depth})), ["depth"]);
    }
    for (given, kept) in [("a", "a"), ("a/b c", "a/b c"), ("a/", "a"), ("..a", "..a")] {
        let read = read(&json!({"path": "/a", "subdirectory": given})).unwrap();
        assert_eq!(read.subdirectory.as_deref(), Some(kept));
    }
    for given in [
        "/a",
        "..",
        "a/../b",
        ".",
        "a//b",
        "a/.git/hooks",
        ".GIT",
        "/",
        "",
    ] {
        let value = json!({"path": "/a", "subdirectory": given});
        assert_eq!(paths(&value), ["subdirectory"], "{given}");
    }
}

#[test]
fn work_that_is_not_committed_outlives_its_session_for_a_while() {
    for (over, dirty_ms, expected) in [
        (false, None, Upkeep::Keep),
        (false, Some(1_000), Upkeep::Keep),
        (true, None, Upkeep::Remove),
        (true, Some(0), Upkeep::KeepDirty),
        (true, Some(99), Upkeep::KeepDirty),
        (true, Some(100), Upkeep::RemoveDirty),
    ] {
        assert_eq!(upkeep(over, dirty_ms, 100), expected);
    }
    assert_eq!(upkeep(true, Some(0), 0), Upkeep::RemoveDirty);
}

proptest! {
    /// What passes can't be an option of git or ssh, and holds nothing after an `@` but a host.
    #[test]
    fn whatever_passes_is_no_option(url in "\\PC{0,40}", name in "\\PC{0,20}") {
        if let Ok(read) = read(&json!({"url": url, "ref": name})) {
            match read.source {
                Source::Remote { url, transport } => {
                    prop_assert!(!url.starts_with('-'));
                    if transport != Transport::Ssh {
                        let authority = url.split("://").nth(1).unwrap().split('/').next().unwrap();
                        prop_assert!(!authority.contains('@'));
                    }
                }
                Source::Directory(path) => prop_assert!(path.starts_with('/')),
            }
            if let Start::Ref(name) = read.start {
                prop_assert!(!name.starts_with('-') && !name.contains(".."));
            }
        }
    }
}
