use std::fs::File;
use std::time::SystemTime;

use super::super::WorkspaceTarget;
use super::super::testing::{Fixture, git};
use super::*;

async fn worktree(fixture: &Fixture, session_id: &str) -> PathBuf {
    let fields = serde_json::json!({"path": fixture.project()});
    let target = WorkspaceTarget::read("git", fields.as_object().unwrap()).unwrap();
    let prepared = fixture
        .workspaces
        .prepare(&target, session_id)
        .await
        .unwrap();
    let tracked = fixture
        .workspaces
        .track(&prepared.directory, session_id)
        .await;
    assert!(tracked.unwrap().is_some());
    prepared.directory
}

fn branches(fixture: &Fixture, session_id: &str) -> String {
    let folders = &fixture.workspaces.worktrees.folders;
    let mirror = Record::read(folders, session_id).unwrap().unwrap().mirror;
    mirror.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_clean_worktree_goes_with_its_session_and_its_branch_stays() {
    let fixture = Fixture::new();
    let directory = worktree(&fixture, "one").await;
    let other = worktree(&fixture, "two").await;
    fs::write(directory.join("kept.txt"), "kept").unwrap();
    git(&directory, &["add", "."]);
    git(&directory, &["commit", "--quiet", "-m", "kept"]);
    let mirror = PathBuf::from(branches(&fixture, "one"));
    let workspaces = &fixture.workspaces;
    assert_eq!(workspaces.held().await.unwrap().len(), 2);
    let done = workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::Remove);
    assert!(!directory.exists() && other.exists());
    assert_eq!(workspaces.sessions().unwrap(), ["two".to_owned()].into());
    assert_eq!(git(&mirror, &["show", "tapedeck/one:kept.txt"]), "kept");
    // Once more is the same, and so is a session that never was here.
    for session_id in ["one", "never"] {
        let done = workspaces.end_session(session_id, false).await.unwrap();
        assert_eq!(done, Upkeep::Remove);
    }
    assert!(workspaces.end_session("../two", true).await.is_err());
}

#[tokio::test]
async fn a_dirty_worktree_stays_until_its_time_is_up_or_somebody_insists() {
    let fixture = Fixture::new();
    let workspaces = &fixture.workspaces;
    let directory = worktree(&fixture, "one").await;
    fs::write(directory.join("new.txt"), "new").unwrap();
    for _ in 0..2 {
        let done = workspaces.end_session("one", false).await.unwrap();
        assert_eq!(done, Upkeep::KeepDirty);
    }
    assert_eq!(workspaces.held().await.unwrap()[0].dirty, Some(true));
    let mark = workspaces.worktrees.folders.dirty_mark("one");
    let past = SystemTime::UNIX_EPOCH + Duration::from_hours(24);
    File::options()
        .write(true)
        .open(mark)
        .unwrap()
        .set_modified(past)
        .unwrap();
    let done = workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::RemoveDirty);
    assert!(!directory.exists());

    let directory = worktree(&fixture, "two").await;
    fs::write(directory.join("a.txt"), "changed").unwrap();
    let done = workspaces.end_session("two", true).await.unwrap();
    assert_eq!(done, Upkeep::RemoveDirty);
    assert!(!directory.exists() && workspaces.sessions().unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_worktree_stays_until_somebody_insists() {
    let fixture = Fixture::new();
    let workspaces = &fixture.workspaces;
    let directory = worktree(&fixture, "one").await;
    fs::remove_file(directory.join(".git")).unwrap();
    fs::write(directory.join(".git"), "gitdir: /elsewhere").unwrap();
    assert_eq!(workspaces.held().await.unwrap()[0].dirty, None);
    let done = workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::KeepDirty);
    let done = workspaces.end_session("one", true).await.unwrap();
    assert_eq!(done, Upkeep::RemoveDirty);
    assert!(!directory.exists() && workspaces.sessions().unwrap().is_empty());
}

#[tokio::test]
async fn a_worktree_that_an_agent_is_in_stays() {
    let fixture = Fixture::new();
    let directory = worktree(&fixture, "one").await;
    let path = lock_path(&fixture.path("state"), &directory);
    private_dir(path.parent().unwrap()).unwrap();
    let lock = FileLock::take(&path, LOCK_LIMIT).await.unwrap();
    let done = fixture.workspaces.end_session("one", true).await.unwrap();
    assert_eq!(done, Upkeep::Keep);
    drop(lock);
    let done = fixture.workspaces.end_session("one", true).await.unwrap();
    assert_eq!(done, Upkeep::Remove);
}

fn mirror_of(fixture: &Fixture, session_id: &str) -> PathBuf {
    PathBuf::from(branches(fixture, session_id))
}

fn commit(directory: &Path, name: &str) -> String {
    fs::write(directory.join(name), name).unwrap();
    git(directory, &["add", name]);
    git(directory, &["commit", "--quiet", "-m", name]);
    git(directory, &["rev-parse", "HEAD"])
}

/// The names under which the mirror keeps what no branch leads to.
fn kept(mirror: &Path, session_id: &str) -> Vec<String> {
    let pattern = format!("refs/tapedeck/kept/{session_id}");
    let listed = git(
        mirror,
        &["for-each-ref", "--format=%(objectname)", &pattern],
    );
    listed.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn nothing_that_was_committed_goes_with_a_worktree() {
    let fixture = Fixture::new();
    let directory = worktree(&fixture, "one").await;
    let mirror = mirror_of(&fixture, "one");
    let mut precious = Vec::new();
    // Left for another line of work, and named by a tag, which the next fetch takes away.
    git(&directory, &["checkout", "--quiet", "--detach"]);
    precious.push(commit(&directory, "left"));
    git(&directory, &["tag", "mine"]);
    git(
        &directory,
        &["checkout", "--quiet", "-b", "feature", "tapedeck/one"],
    );
    precious.push(commit(&directory, "feature"));
    fs::write(directory.join("a.txt"), "stashed").unwrap();
    git(&directory, &["stash", "--quiet"]);
    precious.push(git(&directory, &["rev-parse", "refs/stash"]));
    // Named by what is this worktree's own.
    git(&directory, &["checkout", "--quiet", "tapedeck/one"]);
    let tree = git(&directory, &["rev-parse", "HEAD^{tree}"]);
    let private = git(&directory, &["commit-tree", "-m", "private", &tree]);
    git(&directory, &["update-ref", "refs/worktree/mine", &private]);
    precious.push(private);
    // A commit that was written anew is not wanted any more.
    let amended = commit(&directory, "amended");
    git(&directory, &["commit", "--quiet", "--amend", "-m", "again"]);
    precious.push(git(&directory, &["rev-parse", "HEAD"]));
    // And where it stands at last.
    git(&directory, &["checkout", "--quiet", "--detach"]);
    precious.push(commit(&directory, "last"));

    let done = fixture.workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::Remove);
    assert!(!directory.exists());
    let other = worktree(&fixture, "two").await;
    git(&mirror, &["gc", "--quiet", "--prune=now"]);
    for commit in &precious {
        git(&mirror, &["cat-file", "-e", commit]);
    }
    let mut expected = [&precious[0], &precious[3], &precious[5]].map(Clone::clone);
    expected.sort();
    let mut kept = kept(&mirror, "one");
    kept.sort();
    assert_eq!(kept, expected);
    assert!(!kept.contains(&amended));
    assert!(other.exists());
}

#[tokio::test]
async fn what_branches_lead_to_gets_no_other_name() {
    let fixture = Fixture::new();
    let directory = worktree(&fixture, "one").await;
    let mirror = mirror_of(&fixture, "one");
    commit(&directory, "new");
    for place in ["--detach", "tapedeck/one", "--detach"] {
        git(&directory, &["checkout", "--quiet", place]);
    }
    fixture.workspaces.end_session("one", false).await.unwrap();
    assert_eq!(kept(&mirror, "one"), [""; 0]);
    assert!(!mirror.join("worktrees").join("one").exists());
}

/// Git holds the work that a rebase put away as a commit that nothing else leads to.
#[tokio::test]
async fn a_rebase_under_way_loses_nothing() {
    let fixture = Fixture::new();
    let directory = worktree(&fixture, "one").await;
    let mirror = mirror_of(&fixture, "one");
    commit(&directory, "first");
    commit(&directory, "second");
    fs::write(directory.join("a.txt"), "put away").unwrap();
    let stop = ["-c", "sequence.editor=sed -i s/^pick/edit/"];
    let rebase = [
        "rebase",
        "--quiet",
        "--autostash",
        "--interactive",
        "HEAD~2",
    ];
    git(&directory, &[&stop[..], &rebase].concat());
    let inside = commit(&directory, "inside");
    let done = fixture.workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::Remove);
    let kept = kept(&mirror, "one");
    assert!(kept.contains(&inside), "{kept:?}");
    let shows = |id: &String| git(&mirror, &["show", &format!("{id}:a.txt")]) == "put away";
    assert!(kept.iter().any(shows), "{kept:?}");
}

/// A commit only names them.
#[tokio::test]
async fn a_repository_inside_a_worktree_counts_as_work() {
    let fixture = Fixture::new();
    let workspaces = &fixture.workspaces;
    let directory = worktree(&fixture, "one").await;
    let inner = directory.join("inner");
    git(&directory, &["init", "--quiet", "inner"]);
    commit(&inner, "nested");
    assert_eq!(workspaces.held().await.unwrap()[0].dirty, Some(true));
    git(&directory, &["add", "inner"]);
    git(&directory, &["commit", "--quiet", "-m", "inner"]);
    assert_eq!(git(&directory, &["status", "--porcelain"]), "");
    assert_eq!(workspaces.held().await.unwrap()[0].dirty, Some(true));
    let done = workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::KeepDirty);
    assert!(inner.join("nested").exists());
}

#[tokio::test]
async fn what_was_put_aside_is_listed_and_ends_like_work_that_is_not_committed() {
    let fixture = Fixture::new();
    let workspaces = &fixture.workspaces;
    let place = workspaces.worktrees.folders.worktree("one");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("work"), "precious").unwrap();
    let directory = worktree(&fixture, "one").await;
    let unknown = workspaces.worktrees.folders.worktree("never");
    fs::create_dir_all(&unknown).unwrap();
    let aside = place.with_extension("aside-1");
    let held = workspaces.held().await.unwrap();
    let told: Vec<_> = held
        .iter()
        .map(|held| (held.session_id.as_str(), &held.path, held.record.is_some()))
        .collect();
    let expected = [
        ("never", &unknown, false),
        ("one", &directory, true),
        ("one", &aside, false),
    ];
    assert_eq!(told, expected);

    for session_id in ["one", "never"] {
        assert!(workspaces.sessions().unwrap().contains(session_id));
        let done = workspaces.end_session(session_id, false).await.unwrap();
        assert_eq!(done, Upkeep::KeepDirty);
    }
    assert!(aside.join("work").exists() && directory.exists() && unknown.exists());
    for session_id in ["one", "never"] {
        let done = workspaces.end_session(session_id, true).await.unwrap();
        assert_eq!(done, Upkeep::RemoveDirty);
    }
    assert!(!aside.exists() && !directory.exists() && !unknown.exists());
    assert!(workspaces.sessions().unwrap().is_empty());
}

/// Whatever an agent has done to it, somebody who insists is rid of it.
#[tokio::test]
async fn a_worktree_that_git_can_not_read_ends_as_a_damaged_one() {
    let fixture = Fixture::new();
    let workspaces = &fixture.workspaces;
    let directory = worktree(&fixture, "one").await;
    let repository = git(&directory, &["rev-parse", "--absolute-git-dir"]);
    fs::write(Path::new(&repository).join("index"), "no index").unwrap();
    let done = workspaces.end_session("one", false).await.unwrap();
    assert_eq!(done, Upkeep::KeepDirty);
    let done = workspaces.end_session("one", true).await.unwrap();
    assert_eq!(done, Upkeep::RemoveDirty);
    assert!(!directory.exists());
}
