use serde_json::{Value, json};

use super::super::testing::{Fixture, git};
use super::super::{Prepared, WorkspaceError, WorkspaceTarget};
use super::*;

async fn prepare(
    fixture: &Fixture,
    session_id: &str,
    fields: Value,
) -> Result<Prepared, WorkspaceError> {
    let target = WorkspaceTarget::read("git", fields.as_object().unwrap())?;
    fixture.workspaces.prepare(&target, session_id).await
}

fn project(fixture: &Fixture) -> Value {
    json!({"path": fixture.project()})
}

#[tokio::test]
async fn a_session_has_a_branch_and_a_worktree_that_its_later_runs_find_again() {
    let fixture = Fixture::new();
    let head = git(&fixture.project(), &["rev-parse", "HEAD"]);
    let first = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let told = first.told.clone().unwrap();
    assert_eq!(told.branch, "tapedeck/one");
    assert_eq!((told.commit, told.note), (head, None));
    let directory = first.directory;
    assert!(directory.starts_with(fixture.path("state")));
    assert_eq!(
        git(&directory, &["branch", "--show-current"]),
        "tapedeck/one"
    );

    // What is not committed is there for the next run, whatever the repository has by then.
    std::fs::write(directory.join("new.txt"), "new").unwrap();
    fixture.write("later.txt", "later");
    fixture.commit("later");
    let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert_eq!(again.directory, directory);
    assert!(directory.join("new.txt").exists() && !directory.join("later.txt").exists());

    let other = prepare(&fixture, "two", project(&fixture)).await.unwrap();
    assert!(other.directory.join("later.txt").exists());
    assert!(!other.directory.join("new.txt").exists());
    // The repository itself knows nothing of it.
    assert_eq!(git(&fixture.project(), &["branch", "--list"]), "* main");
    assert_eq!(
        git(&fixture.project(), &["worktree", "list"])
            .lines()
            .count(),
        1
    );
    assert_eq!(git(&fixture.project(), &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn a_start_and_a_subdirectory_are_found_and_links_that_lead_out_are_not_followed() {
    let fixture = Fixture::new();
    let first = git(&fixture.project(), &["rev-parse", "HEAD"]);
    git(&fixture.project(), &["tag", "v1"]);
    fixture.write("later.txt", "later");
    std::os::unix::fs::symlink("/etc", fixture.project().join("out")).unwrap();
    fixture.commit("later");
    git(&fixture.project(), &["branch", "topic", "v1"]);
    for (session, start) in [
        ("tag", json!({"ref": "v1"})),
        ("commit", json!({"ref": first})),
        ("short", json!({"ref": &first[..10]})),
        ("branch", json!({"branch": "topic"})),
    ] {
        let mut fields = project(&fixture);
        fields
            .as_object_mut()
            .unwrap()
            .extend(start.as_object().unwrap().clone());
        fields["subdirectory"] = json!("sub");
        let prepared = prepare(&fixture, session, fields).await.unwrap();
        assert_eq!(prepared.told.unwrap().commit, first, "{session}");
        assert!(prepared.directory.join("b.txt").exists());
        assert!(!prepared.directory.join("../later.txt").exists());
    }
    for (session, subdirectory, expected) in [
        ("out", "out", "leads out of the repository"),
        ("none", "nowhere", "cannot be used"),
        ("file", "a.txt", "is not a directory"),
    ] {
        let mut fields = project(&fixture);
        fields["subdirectory"] = json!(subdirectory);
        let error = prepare(&fixture, session, fields).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut fields = project(&fixture);
    fields["ref"] = json!("nowhere");
    let error = prepare(&fixture, "nowhere", fields).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no branch, tag or commit `nowhere`"),
        "{error}"
    );
}

#[tokio::test]
async fn a_repository_is_reached_only_as_the_executor_allows() {
    let fixture = Fixture::new();
    let outside = fixture.path("outside");
    git(
        &fixture.path(""),
        &["clone", "--quiet", "root/project", "outside"],
    );
    for (fields, expected) in [
        (json!({"path": outside}), "outside the allowed roots"),
        (
            json!({"url": format!("file://{}", outside.display())}),
            "outside the allowed roots",
        ),
        (
            json!({"url": "http://127.0.0.1:1/a"}),
            "reaches no git repositories by http",
        ),
        (json!({"url": "ext::sh -c id"}), "`url` must hold no query"),
        (
            json!({"url": "https://me:hunter2@example.com/a"}),
            "`url` must hold no credentials",
        ),
    ] {
        let error = prepare(&fixture, "one", fields)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(expected) && !error.contains("hunter2"),
            "{error}"
        );
    }
}

/// The user's hooks, filters and the like are none of the executor's.
#[tokio::test]
async fn nothing_that_a_repository_or_an_agent_names_is_run() {
    let fixture = Fixture::new();
    let marker = fixture.path("ran");
    let command = format!("touch {}", marker.display());
    fixture.write(".gitattributes", "*.txt filter=evil diff=evil\n");
    fixture.commit("attributes");
    let prepared = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    // An agent changes what its worktree shares with the next ones.
    let evil = [
        ("filter.evil.smudge", &command),
        ("filter.evil.clean", &command),
        ("core.fsmonitor", &command),
        ("core.sshCommand", &command),
        ("diff.evil.textconv", &command),
        ("diff.external", &command),
    ];
    for (name, value) in evil {
        git(&prepared.directory, &["config", name, value]);
    }
    let hooks = git(&prepared.directory, &["rev-parse", "--git-common-dir"]);
    let hooks = Path::new(&hooks).join("hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    for hook in [
        "post-checkout",
        "reference-transaction",
        "post-index-change",
    ] {
        let path = hooks.join(hook);
        std::fs::write(&path, format!("#!/bin/sh\n{command}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).unwrap();
    }
    std::fs::write(prepared.directory.join("a.txt"), "changed\n").unwrap();
    drop(std::fs::remove_file(&marker));
    prepare(&fixture, "two", project(&fixture)).await.unwrap();
    prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let record = record(&fixture, "one");
    assert!(
        fixture
            .workspaces
            .worktrees
            .is_dirty(&record)
            .await
            .unwrap()
    );
    let tracking = fixture
        .workspaces
        .track(&prepared.directory, "one")
        .await
        .unwrap();
    std::fs::write(prepared.directory.join("a.txt"), "changed again\n").unwrap();
    assert_eq!(
        tracking
            .unwrap()
            .changes()
            .await
            .unwrap()
            .run
            .table
            .file_count,
        1
    );
    assert!(!marker.exists());
}

fn record(fixture: &Fixture, session_id: &str) -> Record {
    let folders = &fixture.workspaces.worktrees.folders;
    Record::read(folders, session_id).unwrap().unwrap()
}

#[tokio::test]
async fn a_source_that_is_away_is_replaced_by_its_copy_and_the_run_says_so() {
    let fixture = Fixture::new();
    prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let hidden = fixture.project().join(".git");
    std::fs::rename(&hidden, fixture.path("hidden")).unwrap();
    let again = prepare(&fixture, "two", project(&fixture)).await.unwrap();
    let note = again.told.unwrap().note.unwrap();
    assert!(note.contains("not fetched"), "{note}");
    let mut fields = project(&fixture);
    fields["ref"] = json!("unknown");
    let error = prepare(&fixture, "three", fields).await.unwrap_err();
    assert!(error.to_string().contains("`git fetch` failed"), "{error}");
    // A worktree that is there needs nothing from outside.
    assert_eq!(
        prepare(&fixture, "one", project(&fixture))
            .await
            .unwrap()
            .told
            .unwrap()
            .note,
        None
    );
}

#[tokio::test]
async fn a_worktree_that_is_gone_comes_back_from_its_branch_and_a_strange_one_is_refused() {
    let fixture = Fixture::new();
    let first = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    std::fs::write(first.directory.join("kept.txt"), "kept").unwrap();
    git(&first.directory, &["add", "."]);
    git(&first.directory, &["commit", "--quiet", "-m", "kept"]);
    std::fs::remove_dir_all(&first.directory).unwrap();
    let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert!(again.directory.join("kept.txt").exists());

    git(
        &fixture.path("root"),
        &["clone", "--quiet", "project", "second"],
    );
    let second = json!({"path": fixture.path("root/second")});
    let error = prepare(&fixture, "one", second).await.unwrap_err();
    assert!(
        matches!(error, WorkspaceError::OtherSource { .. }),
        "{error}"
    );

    let strange = format!("gitdir: {}\n", fixture.project().join(".git").display());
    std::fs::write(again.directory.join(".git"), strange).unwrap();
    let error = prepare(&fixture, "one", project(&fixture))
        .await
        .unwrap_err();
    assert!(matches!(error, WorkspaceError::Damaged(_)), "{error}");
}

/// An agent may remove what it doesn't know.
#[tokio::test]
async fn a_worktree_that_lost_its_tie_gets_it_back_with_its_files_as_they_are() {
    let fixture = Fixture::new();
    let first = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let place = first.directory;
    std::fs::remove_file(place.join(".git")).unwrap();
    std::fs::remove_file(place.join("a.txt")).unwrap();
    std::fs::write(place.join("new.txt"), "new").unwrap();
    prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let status = git(&place, &["status", "--porcelain"]);
    assert_eq!(status, "D a.txt\n?? new.txt");

    // Another session comes and goes meanwhile, and its agent tidies up.
    std::fs::remove_file(place.join(".git")).unwrap();
    let other = prepare(&fixture, "two", project(&fixture)).await.unwrap();
    git(&other.directory, &["worktree", "prune", "--expire=now"]);
    fixture.workspaces.end_session("two", true).await.unwrap();
    let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert_eq!(git(&place, &["status", "--porcelain"]), status);
    let note = again.told.unwrap().note.unwrap();
    assert!(note.contains("lost its `.git`"), "{note}");
    let quiet = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert_eq!(quiet.told.unwrap().note, None);
    assert!(!place.with_extension("aside-1").exists());
}

/// The files stay where they are: an agent may be in there.
#[tokio::test]
async fn a_worktree_that_the_mirror_has_forgotten_is_tied_to_it_again() {
    let fixture = Fixture::new();
    let place = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let place = place.directory;
    std::fs::write(place.join("new.txt"), "new").unwrap();
    std::fs::write(place.join("a.txt"), "changed").unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&place.metadata().unwrap());
    for has_tie in [true, false] {
        let repository = git(&place, &["rev-parse", "--absolute-git-dir"]);
        std::fs::remove_dir_all(repository).unwrap();
        if !has_tie {
            std::fs::remove_file(place.join(".git")).unwrap();
        }
        let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
        let note = again.told.unwrap().note.unwrap();
        assert!(note.contains("had forgotten the worktree"), "{note}");
        assert_eq!(
            git(&place, &["status", "--porcelain"]),
            "M a.txt\n?? new.txt"
        );
        assert_eq!(git(&place, &["branch", "--show-current"]), "tapedeck/one");
    }
    let now = std::os::unix::fs::MetadataExt::ino(&place.metadata().unwrap());
    assert_eq!(inode, now);
    let listed = git(&place, &["worktree", "list", "--porcelain"]);
    let named = format!("worktree {}", place.display());
    assert_eq!(listed.lines().filter(|line| **line == *named).count(), 1);
    assert_eq!(listed.matches("worktree ").count(), 2, "{listed}");
}

/// What is wrong with one worktree of a copy is no other's matter.
#[tokio::test]
async fn a_broken_worktree_fails_its_own_session_only() {
    let fixture = Fixture::new();
    let broken = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let other = prepare(&fixture, "two", project(&fixture)).await.unwrap();
    std::fs::remove_file(broken.directory.join(".git")).unwrap();
    git(&broken.directory, &["init", "--quiet", "."]);
    std::fs::remove_file(other.directory.join(".git")).unwrap();
    prepare(&fixture, "two", project(&fixture)).await.unwrap();
    assert_eq!(git(&other.directory, &["status", "--porcelain"]), "");
    std::fs::remove_dir_all(&other.directory).unwrap();
    prepare(&fixture, "two", project(&fixture)).await.unwrap();
    prepare(&fixture, "three", project(&fixture)).await.unwrap();
    fixture.workspaces.end_session("two", false).await.unwrap();
    assert!(broken.directory.join(".git").is_dir());

    // Its own next run says what is to be done, and that helps.
    let error = prepare(&fixture, "one", project(&fixture))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("Move it somewhere else"),
        "{error}"
    );
    std::fs::rename(&broken.directory, fixture.path("moved")).unwrap();
    let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert!(again.directory.join("a.txt").exists());
    let note = again.told.unwrap().note.unwrap();
    assert!(note.contains("made anew"), "{note}");
}

#[tokio::test]
async fn a_worktree_that_is_made_anew_says_so_and_loses_no_commit() {
    let fixture = Fixture::new();
    let first = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    git(&first.directory, &["checkout", "--quiet", "--detach"]);
    std::fs::write(first.directory.join("kept.txt"), "kept").unwrap();
    git(&first.directory, &["add", "."]);
    git(&first.directory, &["commit", "--quiet", "-m", "kept"]);
    let commit = git(&first.directory, &["rev-parse", "HEAD"]);
    // Git keeps the repositories of submodules where the mirror knows of the worktree.
    let repository = git(&first.directory, &["rev-parse", "--absolute-git-dir"]);
    let module = Path::new(&repository).join("modules/inner");
    std::fs::create_dir_all(module).unwrap();
    std::fs::remove_dir_all(&first.directory).unwrap();
    let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert!(!again.directory.join("kept.txt").exists());
    let aside = again.directory.with_extension("aside-1");
    assert!(aside.join("inner").is_dir());
    let name = format!("refs/tapedeck/kept/one/{commit}");
    let note = again.told.unwrap().note.unwrap();
    assert!(note.contains("made anew") && note.contains(&name), "{note}");
    assert_eq!(
        git(&again.directory, &["show", &format!("{name}:kept.txt")]),
        "kept"
    );
}

#[tokio::test]
async fn a_session_goes_on_in_its_worktree_when_the_repository_is_gone() {
    let fixture = Fixture::new();
    let first = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let moved = fixture.path("root/moved");
    std::fs::rename(fixture.project(), &moved).unwrap();
    let fields = json!({"path": fixture.project()});
    let again = prepare(&fixture, "one", fields.clone()).await.unwrap();
    assert_eq!(again.directory, first.directory);
    let error = prepare(&fixture, "two", fields).await.unwrap_err();
    assert!(matches!(error, WorkspaceError::Unusable { .. }), "{error}");
}

#[tokio::test]
async fn a_repository_without_a_commit_is_named_as_such() {
    let fixture = Fixture::new();
    git(&fixture.path("root"), &["init", "--quiet", "empty"]);
    let empty = json!({"path": fixture.path("root/empty")});
    let error = prepare(&fixture, "one", empty).await.unwrap_err();
    assert!(
        error.to_string().contains("no commit to start from"),
        "{error}"
    );
}

/// As git leaves it when it is killed in the middle.
#[tokio::test]
async fn a_worktree_that_was_not_finished_is_made_again() {
    let fixture = Fixture::new();
    let first = prepare(&fixture, "one", project(&fixture)).await.unwrap();
    let place = first.directory.clone();
    let repository = git(
        &place,
        &["rev-parse", "--path-format=absolute", "--git-dir"],
    );
    for has_record in [true, false] {
        std::fs::write(Path::new(&repository).join("locked"), "initializing").unwrap();
        std::fs::remove_file(place.join("a.txt")).unwrap();
        if !has_record {
            Record::remove(&fixture.workspaces.worktrees.folders, "one").unwrap();
        }
        let again = prepare(&fixture, "one", project(&fixture)).await.unwrap();
        assert_eq!(again.directory, place);
        let note = again.told.unwrap().note.unwrap();
        let aside = if has_record { "aside-1" } else { "aside-2" };
        assert!(note.contains(aside), "{note}");
        assert!(place.join("a.txt").exists());
        assert_eq!(git(&place, &["status", "--porcelain"]), "");
    }
    assert!(place.with_extension("aside-2").exists());
}

/// What nobody knows is put aside and not removed.
#[tokio::test]
async fn a_folder_without_a_record_is_put_aside() {
    let fixture = Fixture::new();
    let place = fixture.workspaces.worktrees.folders.worktree("one");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("work"), "precious").unwrap();
    prepare(&fixture, "one", project(&fixture)).await.unwrap();
    assert!(place.join("a.txt").exists());
    assert!(place.with_extension("aside-1").join("work").exists());
}

#[tokio::test]
async fn a_shallow_copy_has_as_much_history_as_was_asked_for() {
    let fixture = Fixture::new();
    fixture.write("a.txt", "second\n");
    fixture.commit("second");
    let fields = json!({"url": format!("file://{}", fixture.project().display()), "depth": 1});
    let prepared = prepare(&fixture, "one", fields).await.unwrap();
    assert!(prepared.directory.join("a.txt").exists());
}
