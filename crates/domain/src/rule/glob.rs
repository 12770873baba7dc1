//! Patterns of texts: `*` stands for any run of characters, `?` for one, and `\` takes the next
//! character as it is.

/// What a wildcard must not stand for where a match lets a tool run: whatever ends one shell command
/// and begins another, redirects, substitutes, or puts something on another line.
const OPERATORS: &[char] = &[';', '&', '|', '`', '$', '(', ')', '<', '>'];

/// Longer texts are not looked at (see the callers for what that means).
pub(super) const TEXT_BYTES: usize = 64 * 1024;

/// Whether a wildcard may stand for this character in a rule that allows.
fn is_plain(c: char) -> bool {
    !OPERATORS.contains(&c) && !c.is_control()
}

/// One step of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Is(char),
    One,
    Any,
}

fn steps(pattern: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut letters = pattern.chars();
    while let Some(c) = letters.next() {
        steps.push(match c {
            '*' => Step::Any,
            '?' => Step::One,
            '\\' => Step::Is(letters.next().unwrap_or('\\')),
            c => Step::Is(c),
        });
    }
    steps
}

/// A pattern that matches this text alone.
pub(super) fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Whether the whole text matches.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    text.len() <= TEXT_BYTES && run(&steps(pattern), text, |_| true)
}

/// Whether the whole text matches in a way that lets it through: no wildcard stands for a shell
/// operator or a control character, and a pattern with wildcards matches nothing that climbs with
/// `..`. A text without wildcards is matched as it is: whoever wrote it has seen it whole.
pub(super) fn matches_plainly(pattern: &str, text: &str) -> bool {
    if text.len() > TEXT_BYTES {
        return false;
    }
    let steps = steps(pattern);
    let is_exact = steps.iter().all(|step| matches!(step, Step::Is(_)));
    (is_exact || !climbs(text)) && run(&steps, text, is_plain)
}

/// Whether the text or any command in it matches: what is denied stays so behind `;` or `&&`. A text
/// that is too long to be looked at counts as matching, so that length is no way around a rule.
pub(super) fn matches_anywhere(pattern: &str, text: &str) -> bool {
    if text.len() > TEXT_BYTES {
        return true;
    }
    let steps = steps(pattern);
    let anything = |_| true;
    run(&steps, text, anything)
        || text
            .split(|c| !is_plain(c))
            .any(|piece| run(&steps, piece.trim(), anything))
}

/// Whether `..` stands as a part of a path in it.
fn climbs(text: &str) -> bool {
    let is_border = |c: char| c.is_whitespace() || "/\\=:,'\"{}".contains(c);
    text.split(is_border).any(|part| part == "..")
}

/// Matches from left to right. Where something doesn't fit, the last `*` takes one character more;
/// earlier ones need never take more, so this takes at most pattern times text steps.
fn run(steps: &[Step], text: &str, may_be_wild: impl Fn(char) -> bool) -> bool {
    let letters: Vec<char> = text.chars().collect();
    let (mut step, mut letter) = (0, 0);
    let mut last_any: Option<(usize, usize)> = None;
    while letter < letters.len() {
        let c = letters[letter];
        match steps.get(step) {
            Some(Step::Is(wanted)) if *wanted == c => (step, letter) = (step + 1, letter + 1),
            Some(Step::One) if may_be_wild(c) => (step, letter) = (step + 1, letter + 1),
            Some(Step::Any) => {
                last_any = Some((step, letter));
                step += 1;
            }
            Some(Step::Is(_) | Step::One) | None => match last_any {
                Some((any, taken)) if may_be_wild(letters[taken]) => {
                    last_any = Some((any, taken + 1));
                    (step, letter) = (any + 1, taken + 1);
                }
                Some(_) | None => return false,
            },
        }
    }
    steps[step..].iter().all(|rest| *rest == Step::Any)
}
