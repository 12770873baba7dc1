use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use tapedeck_protocol::changes::{ChangeStatus, FileChange};

use super::super::testing::{Fixture, git};
use super::*;

async fn track(fixture: &Fixture) -> Tracking {
    let tracking = fixture.workspaces.track(&fixture.project(), "s").await;
    tracking.unwrap().unwrap()
}

fn file<'a>(changes: &'a Difference, path: &str) -> &'a FileChange {
    let found = changes.table.files.iter().find(|file| file.path == path);
    found.unwrap_or_else(|| panic!("{path} in {:?}", changes.table))
}

/// The files under git's rules as a tree, by git itself.
fn tree_of(directory: &Path) -> String {
    git(directory, &["add", "--all"]);
    git(directory, &["write-tree"])
}

fn apply(directory: &Path, patch: &[u8]) {
    let mut child = Command::new("git")
        .args(["apply", "--binary", "-"])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    io::Write::write_all(&mut child.stdin.take().unwrap(), patch).unwrap();
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn every_kind_of_change_is_told_and_the_patch_makes_the_same_tree() {
    let fixture = Fixture::new();
    let lines = "a line\n".repeat(100);
    fixture.write("moved.txt", &lines);
    fixture.write("gone.txt", "gone\n");
    fixture.write("picture", b"\0\x01\x02picture");
    fixture.write("script", "#!/bin/sh\n");
    fixture.write("to-link", "a file\n");
    fixture.write("latin", b"caf\xe9\n");
    fixture.write("no-end", "no newline at the end");
    fixture.commit("more");
    let clone = fixture.path("clone");
    git(
        &fixture.path(""),
        &["clone", "--quiet", "root/project", "clone"],
    );

    let tracking = track(&fixture).await;
    let project = fixture.project();
    fixture.write("a.txt", "one\n2\nthree\nfour\n");
    fs::create_dir(project.join("new")).unwrap();
    fs::rename(project.join("moved.txt"), project.join("new/name.txt")).unwrap();
    fs::remove_file(project.join("gone.txt")).unwrap();
    fixture.write("picture", b"\0\x01\x03another");
    fixture.write("fresh \"quoted\" ü\tname", "fresh\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(project.join("script"), mode).unwrap();
    fs::remove_file(project.join("to-link")).unwrap();
    symlink("a.txt", project.join("to-link")).unwrap();
    fixture.write("latin", b"caf\xe8\n");
    fixture.write("no-end", "still no newline");
    fixture.write("ignored", "not told");
    // A file where a folder was, and the other way round.
    fs::remove_dir_all(project.join("sub")).unwrap();
    fixture.write("sub", "now a file\n");

    let changes = tracking.changes().await.unwrap();
    let run = &changes.run;
    let edited = file(run, "a.txt");
    assert_eq!(
        (edited.status, edited.additions, edited.deletions),
        (ChangeStatus::Modified, Some(2), Some(1))
    );
    let moved = file(run, "new/name.txt");
    assert_eq!(moved.status, ChangeStatus::Renamed);
    assert_eq!(moved.old_path.as_deref(), Some("moved.txt"));
    assert_eq!(file(run, "gone.txt").status, ChangeStatus::Deleted);
    assert!(file(run, "picture").binary && !file(run, "picture").truncated);
    assert_eq!(
        file(run, "fresh \"quoted\" ü\tname").status,
        ChangeStatus::Added
    );
    assert_eq!(file(run, "to-link").status, ChangeStatus::TypeChanged);
    assert_eq!(file(run, "script").status, ChangeStatus::Modified);
    assert!(run.table.files.iter().all(|file| file.path != "ignored"));
    assert!(!run.table.truncated);
    assert_eq!(&changes.session, run);

    apply(&clone, &run.patch);
    assert_eq!(tree_of(&clone), run.table.head);
    assert_eq!(tree_of(&project), run.table.head);
}

/// Neither the checkout, nor the index, nor the objects of the user's repository.
#[tokio::test]
async fn the_users_repository_is_not_touched() {
    let fixture = Fixture::new();
    let project = fixture.project();
    fixture.write("staged.txt", "staged\n");
    git(&project, &["add", "staged.txt"]);
    fixture.write("a.txt", "edited before\n");
    fixture.write("untracked.txt", "untracked before\n");
    let look = || {
        let output = Command::new("find")
            .args([".git", "-printf", "%p %s %T@ %m\n"])
            .current_dir(&project)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let before = look();
    let tracking = track(&fixture).await;
    fixture.write("during.txt", "during\n");
    let run = tracking.changes().await.unwrap().run;
    assert_eq!(run.table.files.len(), 1);
    assert_eq!(file(&run, "during.txt").status, ChangeStatus::Added);
    assert_eq!(look(), before);
}

#[tokio::test]
async fn a_run_is_told_from_the_session_and_commits_change_nothing_about_it() {
    let fixture = Fixture::new();
    let first = track(&fixture).await;
    fixture.write("one.txt", "one\n");
    let changes = first.changes().await.unwrap();
    assert_eq!(changes.run.table.files.len(), 1);
    fixture.commit("one");
    fixture.write("ignored", "force");
    git(&fixture.project(), &["add", "--force", "ignored"]);

    let second = track(&fixture).await;
    fixture.write("two.txt", "two\n");
    fs::remove_file(fixture.project().join("a.txt")).unwrap();
    fixture.commit("two");
    let changes = second.changes().await.unwrap();
    let paths = |difference: &Difference| -> Vec<String> {
        let files = difference.table.files.iter();
        files.map(|file| file.path.clone()).collect()
    };
    assert_eq!(paths(&changes.run), ["a.txt", "two.txt"]);
    assert_eq!(paths(&changes.session), ["a.txt", "one.txt", "two.txt"]);
    // Nothing happened.
    let third = track(&fixture).await;
    let nothing = third.changes().await.unwrap().run;
    assert!(nothing.table.files.is_empty() && nothing.patch.is_empty());
}

/// The repository's owner has rewritten its history, and git has tidied up.
#[tokio::test]
async fn a_session_whose_beginning_is_gone_begins_anew_and_says_so() {
    let fixture = Fixture::new();
    let project = fixture.project();
    let first = track(&fixture).await;
    fixture.write("a.txt", "another\n");
    assert_eq!(first.changes().await.unwrap().session.table.note, None);
    git(&project, &["checkout", "--quiet", "--orphan", "rewritten"]);
    fixture.commit("all anew");
    for branch in git(&project, &["branch", "--format=%(refname:short)"]).lines() {
        if branch != "rewritten" {
            git(&project, &["branch", "--quiet", "-D", branch]);
        }
    }
    git(&project, &["reflog", "expire", "--expire=now", "--all"]);
    git(&project, &["gc", "--quiet", "--prune=now"]);

    let mut expected = Vec::new();
    for name in ["three.txt", "two.txt"] {
        let tracking = track(&fixture).await;
        fixture.write(name, "new\n");
        let changes = tracking.changes().await.unwrap();
        assert_eq!(changes.run.table.files.len(), 1);
        expected.push(name);
        let files = changes.session.table.files.iter();
        let paths: Vec<_> = files.map(|file| file.path.as_str()).collect();
        assert_eq!(paths, expected);
        let note = changes.session.table.note.unwrap();
        assert!(note.contains("since a later run began"), "{note}");
    }
}

#[tokio::test]
async fn a_large_file_is_named_with_its_size_and_not_carried() {
    let fixture = Fixture::new();
    let large = vec![b'x'; 3 * 1024 * 1024];
    fixture.write("tracked.bin", &large);
    fixture.write("unchanged.bin", &large);
    fixture.commit("large");
    let tracking = track(&fixture).await;
    fixture.write("huge.log", &large[1..]);
    fixture.write("tracked.bin", &large[2..]);
    fixture.write("small.txt", "small\n");
    let run = tracking.changes().await.unwrap().run;
    assert_eq!(run.table.files.len(), 3);
    assert!(run.table.truncated);
    for (path, status, size) in [
        ("huge.log", ChangeStatus::Added, large.len() - 1),
        ("tracked.bin", ChangeStatus::Modified, large.len() - 2),
    ] {
        let file = file(&run, path);
        assert_eq!(file.status, status);
        assert_eq!(file.size, Some(size as u64));
        assert!(file.truncated && file.additions.is_none());
    }
    assert!(!file(&run, "small.txt").truncated);
    let patch = String::from_utf8(run.patch).unwrap();
    assert!(patch.contains("small.txt") && !patch.contains("huge.log"));

    // Nothing about them is told again, until they change.
    let next = track(&fixture).await;
    assert_eq!(next.changes().await.unwrap().run.table.file_count, 0);
    fs::remove_file(fixture.project().join("huge.log")).unwrap();
    let run = next.changes().await.unwrap().run;
    assert_eq!(file(&run, "huge.log").status, ChangeStatus::Deleted);
}

#[tokio::test]
async fn many_files_are_counted_and_as_many_told_as_fit() {
    let fixture = Fixture::new();
    let tracking = track(&fixture).await;
    for number in 0..2_100 {
        fixture.write(&format!("many/{number}"), format!("{number}\n"));
    }
    let run = tracking.changes().await.unwrap().run;
    assert_eq!(
        (run.table.file_count, run.table.files.len()),
        (2_100, 2_000)
    );
    assert!(run.table.truncated);
    let named = summary(&run.table);
    assert_eq!(named["files"].as_array().unwrap().len(), 100);
    assert_eq!(
        (&named["file_count"], &named["truncated"]),
        (&json!(2_100), &json!(true))
    );
}

#[tokio::test]
async fn what_lies_outside_of_repositories_or_roots_is_not_followed() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.path("root/plain")).unwrap();
    let plain = fixture
        .workspaces
        .track(&fixture.path("root/plain"), "s")
        .await;
    assert!(plain.unwrap().is_none());
    // The root of its repository is above the allowed one.
    git(&fixture.path(""), &["init", "--quiet"]);
    let inner = fixture
        .workspaces
        .track(&fixture.path("root/plain"), "s")
        .await;
    assert!(inner.unwrap().is_none());
    // From a subdirectory the whole repository is followed.
    let sub = fixture
        .workspaces
        .track(&fixture.project().join("sub"), "s")
        .await;
    let sub = sub.unwrap().unwrap();
    fixture.write("a.txt", "changed\n");
    assert_eq!(
        file(&sub.changes().await.unwrap().run, "a.txt").path,
        "a.txt"
    );
}

#[tokio::test]
async fn repositories_inside_the_repository_are_named_as_not_told() {
    let fixture = Fixture::new();
    let project = fixture.project();
    let tracking = track(&fixture).await;
    let told = tracking.changes().await.unwrap().run.table;
    assert_eq!(summary(&told)["note"], Value::Null);
    for number in 0..7 {
        let name = format!("nested-{number}");
        git(&project, &["init", "--quiet", &name]);
        fs::write(project.join(&name).join("file"), "nested").unwrap();
        git(&project.join(&name), &["add", "."]);
        git(&project.join(&name), &["commit", "--quiet", "-m", "nested"]);
    }
    fixture.write("a.txt", "changed\n");
    let changes = tracking.changes().await.unwrap();
    assert_eq!(changes.run.table.file_count, 1);
    for table in [&changes.run.table, &changes.session.table] {
        let note = table.note.as_deref().unwrap();
        assert!(
            note.contains("`nested-0/`, ") && note.ends_with("`nested-4/` and 2 more"),
            "{note}"
        );
        assert_eq!(summary(table)["note"], note);
    }
}

#[tokio::test]
async fn odd_things_in_a_tree_end_nothing() {
    let fixture = Fixture::new();
    let project = fixture.project();
    let tracking = track(&fixture).await;
    Command::new("mkfifo")
        .arg(project.join("pipe"))
        .status()
        .unwrap();
    symlink("nowhere", project.join("dangling")).unwrap();
    symlink("sub", project.join("linked")).unwrap();
    git(&project, &["init", "--quiet", "inner"]);
    fs::write(project.join("inner/file"), "of another repository").unwrap();
    fixture.write("line\nbreak", "odd name\n");
    let bytes = std::os::unix::ffi::OsStrExt::from_bytes(b"no-text-\xff");
    fs::write(project.join::<&std::ffi::OsStr>(bytes), "odd\n").unwrap();
    // A folder of tracked files becomes a link to elsewhere.
    fs::rename(project.join("sub"), fixture.path("sub")).unwrap();
    symlink(fixture.path("sub"), project.join("sub")).unwrap();
    let run = tracking.changes().await.unwrap().run;
    let paths: Vec<_> = run
        .table
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    assert!(paths.contains(&"dangling") && paths.contains(&"linked"));
    assert!(paths.contains(&"line\nbreak") && paths.contains(&"no-text-\u{fffd}"));
    assert_eq!(file(&run, "sub/b.txt").status, ChangeStatus::Deleted);
    assert!(
        paths
            .iter()
            .all(|path| !path.starts_with("inner") && *path != "pipe")
    );
    assert!(run.table.note.unwrap().contains("`inner/`"));
}

/// A merge that stopped half way has entries of several stages.
#[tokio::test]
async fn a_conflicted_index_is_read() {
    let fixture = Fixture::new();
    let project = fixture.project();
    git(&project, &["checkout", "--quiet", "-b", "other"]);
    fixture.write("a.txt", "theirs\n");
    fixture.commit("theirs");
    git(&project, &["checkout", "--quiet", "main"]);
    fixture.write("a.txt", "ours\n");
    fixture.commit("ours");
    let merge = Command::new("git")
        .args(["merge", "--quiet", "other"])
        .current_dir(&project)
        .output();
    assert!(!merge.unwrap().status.success());
    let tracking = track(&fixture).await;
    fixture.write("a.txt", "both\n");
    let run = tracking.changes().await.unwrap().run;
    assert_eq!(file(&run, "a.txt").status, ChangeStatus::Modified);
}
