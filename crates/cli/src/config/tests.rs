//! That later layers win, that sources are remembered, and that slips are refused.

use super::*;
use crate::exit::Exit;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn source(config: &Config, key: &str) -> String {
    let shown = config.shown();
    shown
        .iter()
        .find(|shown| shown.key == key)
        .unwrap()
        .source
        .clone()
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let file = file(
        "server = \"http://file\"\ndata_dir = \"/file\"\n[executor]\npool = \"file\"\nmax_runs = 3\n",
    );
    let variables = variables(&[
        ("TAPEDECK_SERVER", "http://variable"),
        ("TAPEDECK_DATA_DIR", "/variable"),
        ("TAPEDECK_POOL", ""),
    ]);
    let flags = vec![Given::flag("--server", "server", "http://flag")];
    let config = Config::layered(Some(file.path()), &variables, flags).unwrap();

    assert_eq!(config.server.as_deref(), Some("http://flag"));
    assert_eq!(config.data_dir, PathBuf::from("/variable"));
    assert_eq!(config.executor.pool, "file");
    assert_eq!(config.executor.max_runs, 3);
    assert_eq!(config.executor.lease_seconds, 60);

    assert_eq!(source(&config, "server"), "--server");
    assert_eq!(source(&config, "data_dir"), "TAPEDECK_DATA_DIR");
    assert_eq!(
        source(&config, "executor.pool"),
        file.path().display().to_string()
    );
    assert_eq!(source(&config, "executor.lease_seconds"), "default");
    assert_eq!(source(&config, "executor.id"), "default");
    assert!(config.is_from_flag("server"));
    assert!(!config.is_from_flag("data_dir"));
}

#[test]
fn variables_are_read_as_their_setting_says() {
    let variables = variables(&[
        ("TAPEDECK_TIMING_SCALE", "0.1"),
        ("TAPEDECK_LABELS", "gpu=yes, zone=a"),
        ("TAPEDECK_WORKSPACE_ROOTS", "/a,/b"),
        ("TAPEDECK_EXECUTOR_ID", "7"),
        ("TAPEDECK_LOG_FORMAT", "json"),
        ("TAPEDECK_RETENTION_DELTA_DAYS", "30"),
        ("TAPEDECK_RUN", "not a setting"),
    ]);
    let empty = file("");
    let config = Config::layered(Some(empty.path()), &variables, Vec::new()).unwrap();
    assert!((config.timings().scale - 0.1).abs() < f64::EPSILON);
    assert_eq!(config.timings().keep_deltas_ms, Some(30 * 86_400_000));
    assert_eq!(config.executor.labels["zone"], "a");
    assert_eq!(
        config.executor.workspace_roots,
        [PathBuf::from("/a"), PathBuf::from("/b")]
    );
    assert_eq!(config.executor.id.as_deref(), Some("7"));
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(source(&config, "executor.labels"), "TAPEDECK_LABELS");
}

#[test]
fn slips_are_refused_as_usage() {
    let refused = |text: &str, pairs: &[(&str, &str)]| {
        let file = file(text);
        let error = Config::layered(Some(file.path()), &variables(pairs), Vec::new()).unwrap_err();
        assert_eq!(Exit::of_error(&error), Exit::Usage, "{error:#}");
        format!("{error:#}")
    };
    assert!(refused("[serve]\nport = 1\n", &[]).contains("port"));
    assert!(refused("[timing]\nscale = 0\n", &[]).contains("timing.scale"));
    assert!(refused("[retention]\ndelta_days = 0\n", &[]).contains("retention.delta_days"));
    assert!(refused("x", &[("TAPEDECK_MAX_RUNS", "many")]).contains("TAPEDECK_MAX_RUNS"));
    assert!(refused("[executor]\nagent = \"a\"\ncommand = \"b\"\n", &[]).contains("exclude"));
    let deaf = refused("", &[("TAPEDECK_TESTING_HINTS", "dropped")]);
    assert!(deaf.contains("PostgreSQL"), "{deaf}");
    refused("not toml", &[]);
    let missing = Config::layered(Some(Path::new("/nowhere.toml")), &[], Vec::new()).unwrap_err();
    assert!(missing.to_string().contains("/nowhere.toml"), "{missing}");
}

#[test]
fn the_file_can_be_named_by_a_variable() {
    let file = file("server = \"http://file\"\n");
    let named = [(FILE_VARIABLE.to_owned(), file.path().display().to_string())];
    let config = Config::layered(None, &named, Vec::new()).unwrap();
    assert_eq!(config.server.as_deref(), Some("http://file"));
}

#[test]
fn every_setting_is_listed_once_and_only_settings_are() {
    let empty = file("");
    let config = Config::layered(Some(empty.path()), &[], Vec::new()).unwrap();
    let all = serde_json::to_value(&*config).unwrap();
    let mut keys = Vec::new();
    for (name, value) in all.as_object().unwrap() {
        match value.as_object() {
            Some(section) => keys.extend(section.keys().map(|key| format!("{name}.{key}"))),
            None => keys.push(name.clone()),
        }
    }
    let mut listed: Vec<_> = SETTINGS
        .iter()
        .map(|setting| setting.key.to_owned())
        .collect();
    keys.sort();
    listed.sort();
    assert_eq!(keys, listed);
}

#[test]
fn values_of_an_agents_variables_are_not_shown() {
    let empty = file("");
    let variables = variables(&[("TAPEDECK_AGENT_ENV", "API_KEY=secret,HOME")]);
    let config = Config::layered(Some(empty.path()), &variables, Vec::new()).unwrap();
    let shown = config.shown();
    let env = shown
        .iter()
        .find(|shown| shown.key == "executor.agent_env")
        .unwrap();
    assert_eq!(env.value, serde_json::json!(["API_KEY=…", "HOME"]));
}

const DATABASE: &str = "postgres://u:s3cret@h/d";

#[test]
fn of_two_databases_the_later_layer_wins() {
    let path = |config: &Config| config.data_dir.clone();
    let here = file("data_dir = \"/file\"\n");
    let elsewhere = file("database = \"postgres://h/d\"\n");
    let flag = |flag, key, value: &str| vec![Given::flag(flag, key, value)];

    let named = variables(&[("TAPEDECK_DATABASE", DATABASE)]);
    let config = Config::layered(Some(here.path()), &named, Vec::new()).unwrap();
    assert_eq!(config.database.as_ref().unwrap().expose(), DATABASE);

    let flags = flag("--data-dir", "data_dir", "/flag");
    let config = Config::layered(Some(elsewhere.path()), &named, flags).unwrap();
    assert_eq!((&config.database, path(&config)), (&None, "/flag".into()));
    assert_eq!(source(&config, "database"), "--data-dir");

    let named = variables(&[("TAPEDECK_DATA_DIR", "/variable")]);
    let flags = flag("--database", "database", DATABASE);
    let config = Config::layered(None, &named, flags).unwrap();
    assert!(config.database.is_some());
}

#[test]
fn one_layer_can_not_name_two_databases() {
    let both = [
        ("TAPEDECK_DATABASE", DATABASE),
        ("TAPEDECK_DATA_DIR", "/variable"),
    ];
    let in_file = format!("data_dir = \"/file\"\ndatabase = \"{DATABASE}\"\n");
    let flags = || {
        vec![
            Given::flag("--data-dir", "data_dir", "/flag"),
            Given::flag("--database", "database", DATABASE),
        ]
    };
    for (text, variables, flags, names) in [
        (
            "",
            variables(&both),
            Vec::new(),
            ["`TAPEDECK_DATA_DIR`", "`TAPEDECK_DATABASE`"],
        ),
        (
            in_file.as_str(),
            Vec::new(),
            Vec::new(),
            ["`data_dir`", "`database`"],
        ),
        (
            in_file.as_str(),
            variables(&both),
            flags(),
            ["`--data-dir`", "`--database`"],
        ),
    ] {
        let error = Config::layered(Some(file(text).path()), &variables, flags).unwrap_err();
        let text = format!("{error:#}");
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        assert_eq!(Exit::of_error(&error), Exit::Usage);
    }
}

#[test]
fn a_file_that_is_no_toml_is_told_in_a_line() {
    let file = file("# mine\ntoken_file = s3cret\n");
    let error = Config::layered(Some(file.path()), &[], Vec::new()).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("line 2: ") && !text.contains('\n'), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!(Exit::of_error(&error), Exit::Usage);
}

#[test]
fn what_is_wrong_in_a_file_is_told_in_a_line_as_it_was_written() {
    for (text, says) in [
        ("bogus = 1", "`bogus` is no setting; there are `server`, "),
        ("[executor]\nbogus = 1", "`executor.bogus` is no setting"),
        ("[executor]\nmax_runs = \"x\"", "`executor.max_runs`: "),
        (
            "[log]\nformat = \"xml\"",
            "`log.format` can't be `xml`; it can be `text`, `json`",
        ),
        ("\u{1}", "line 1"),
    ] {
        let file = file(text);
        let error = Config::layered(Some(file.path()), &[], Vec::new()).unwrap_err();
        let told = format!("{error:#}");
        assert!(told.contains(says), "{told}");
        assert!(told.contains(&file.path().display().to_string()), "{told}");
        assert!(!told.contains('\n') && !told.contains("default."), "{told}");
        assert_eq!(Exit::of_error(&error), Exit::Usage, "{told}");
    }
    let latin = file("");
    std::fs::write(latin.path(), b"# caf\xe9\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    for path in [latin.path(), dir.path()] {
        let error = Config::layered(Some(path), &[], Vec::new()).unwrap_err();
        assert!(!format!("{error:#}").contains('\n'), "{error:#}");
        assert_eq!(Exit::of_error(&error), Exit::Usage, "{error:#}");
    }
    let variables = variables(&[("TAPEDECK_LOG_FORMAT", "xml")]);
    let error = Config::layered(None, &variables, Vec::new()).unwrap_err();
    let told = format!("{error:#}");
    assert!(
        told.contains("`TAPEDECK_LOG_FORMAT`: `log.format` can't be `xml`"),
        "{told}"
    );
}

#[test]
fn the_password_of_a_database_is_not_shown() {
    let named = variables(&[("TAPEDECK_DATABASE", DATABASE)]);
    let config = Config::layered(Some(file("").path()), &named, Vec::new()).unwrap();
    let shown = serde_json::to_string(&config.shown()).unwrap();
    assert!(shown.contains("postgres://u:…@h/d"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(!format!("{:?}", *config).contains("s3cret"));
}

#[test]
fn a_token_file_must_hold_a_token() {
    let token = file("  secret\n");
    assert_eq!(read_token(token.path()).unwrap().expose(), "secret");
    assert!(read_token(file("\n").path()).is_err());
    assert!(read_token(Path::new("/nowhere")).is_err());
}

#[test]
fn a_remote_and_a_server_exclude_each_other_and_the_later_holds() {
    let file = file("server = \"http://file\"\n");
    let layered = |pairs: &[(&str, &str)], flags: Vec<Given>| {
        Config::layered(Some(file.path()), &variables(pairs), flags)
    };
    let flag = |name: &str, key| Given::flag(name, key, "x");
    let remote = layered(&[("TAPEDECK_REMOTE", "home")], Vec::new()).unwrap();
    assert_eq!(
        (remote.remote.as_deref(), remote.server.as_deref()),
        (Some("home"), None)
    );
    let server = [flag("--server", "server")];
    let server = layered(&[("TAPEDECK_REMOTE", "home")], server.into()).unwrap();
    assert_eq!(
        (server.remote.as_deref(), server.server.as_deref()),
        (None, Some("x"))
    );
    let both = [flag("--server", "server"), flag("--remote", "remote")];
    let refused = layered(&[], both.into()).unwrap_err().to_string();
    assert!(
        refused.contains("`--server`") && refused.contains("`--remote`"),
        "{refused}"
    );
    let both = [("TAPEDECK_REMOTE", "a"), ("TAPEDECK_SERVER", "b")];
    let refused = layered(&both, Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("`TAPEDECK_REMOTE`"), "{refused}");
}
