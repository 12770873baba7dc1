//! That `docker-compose.yml` and `Dockerfile` fit each other and the binary: the flags they use
//! exist, secrets go to whom they are meant for, and only the proxy can be reached from outside.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use crate::documents::help;
use crate::source::{assert_none, mentions, read, root};

const COMPOSE: &str = "docker-compose.yml";
/// The image that the Dockerfile makes.
const OURS: &str = "tapedeck";

/// A service, as far as the checks look.
#[derive(Debug, Deserialize)]
struct Service {
    image: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    entrypoint: Vec<String>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    networks: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    depends_on: BTreeMap<String, Value>,
    healthcheck: Option<Value>,
    restart: String,
}

impl Service {
    fn is_server(&self) -> bool {
        self.image == OURS && self.command.first().is_some_and(|first| first == "serve")
    }
}

fn json_of(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) | Yaml::Real(text) => json!(text),
        Yaml::Integer(number) => json!(number),
        Yaml::Boolean(flag) => json!(flag),
        Yaml::Array(items) => items.iter().map(json_of).collect(),
        Yaml::Hash(pairs) => pairs
            .iter()
            .map(|(name, value)| (name.as_str().unwrap().to_owned(), json_of(value)))
            .collect(),
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => panic!("{COMPOSE}: {yaml:?}"),
    }
}

fn compose() -> Value {
    let documents = YamlLoader::load_from_str(read(COMPOSE)).unwrap();
    assert_eq!(documents.len(), 1);
    json_of(&documents[0])
}

fn services() -> BTreeMap<String, Service> {
    serde_json::from_value(compose()["services"].clone()).unwrap()
}

fn names(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// The instructions of the Dockerfile with this name, lines that go on joined.
fn instructions(name: &str) -> Vec<String> {
    let text = read("Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines
        .filter(|rest| rest.starts_with(' '))
        .map(|rest| rest.trim().to_owned())
        .collect()
}

/// The flags of a command line that its command doesn't have.
fn unknown_flags(line: &[String]) -> Vec<String> {
    let Some((command, arguments)) = line.split_first() else {
        return vec!["no command".to_owned()];
    };
    let known = help(std::slice::from_ref(command));
    let flags = arguments
        .iter()
        .filter(|argument| argument.starts_with('-'));
    flags
        .map(|flag| flag.split('=').next().unwrap_or(flag))
        .filter(|flag| !mentions(&known, flag))
        .map(|flag| format!("`tapedeck {command}` has no `{flag}`"))
        .collect()
}

#[test]
fn the_whole_deployment_is_there() {
    let services = services();
    let servers = services.values().filter(|service| service.is_server());
    assert_eq!(servers.count(), 2);
    let is = |name: &str, image: &str| services[name].image.starts_with(image);
    assert!(is("postgres", "postgres:16") && is("proxy", "caddy:2"));
    assert_eq!(services["executor"].command.first().unwrap(), "executor");
    assert_eq!(services.len(), 5);
    let unpinned: Vec<_> = services
        .values()
        .map(|service| service.image.as_str())
        .filter(|image| *image != OURS && !image.contains(':'))
        .collect();
    assert_none("images of any version", &unpinned);
    let without: Vec<_> = services
        .iter()
        .filter(|(_, service)| service.image != OURS && service.healthcheck.is_none())
        .map(|(name, _)| name)
        .collect();
    assert_none("services without a health check", &without);
    assert_eq!(instructions("HEALTHCHECK").len(), 1, "ours is in the image");
    assert!(
        services
            .values()
            .all(|service| service.restart == "unless-stopped")
    );
}

#[test]
fn every_command_in_a_container_fits_the_binary() {
    let mut complaints = Vec::new();
    for (name, service) in services() {
        if service.image == OURS {
            let unknown = unknown_flags(&service.command);
            complaints.extend(unknown.iter().map(|flag| format!("{name}: {flag}")));
        }
    }
    let commands = instructions("CMD");
    let command: Vec<String> = serde_json::from_str(commands.last().unwrap()).unwrap();
    complaints.extend(unknown_flags(&command));
    assert_none("flags that are none", &complaints);
    assert_eq!(instructions("ENTRYPOINT"), [r#"["tapedeck"]"#]);
    assert_eq!(
        unknown_flags(&["serve".to_owned(), "--no-such=1".to_owned()]).len(),
        1
    );
}

#[test]
fn only_the_proxy_is_reachable_and_only_from_this_machine() {
    let services = services();
    for (name, service) in &services {
        assert_eq!(service.ports.is_empty(), name != "proxy", "{name}");
        assert!(
            service
                .ports
                .iter()
                .all(|port| port.starts_with("127.0.0.1:"))
        );
        // The database's network leads nowhere else, and the proxy has no business in it.
        let may_see_database = service.is_server() || name == "postgres";
        let sees_database = service.networks.iter().any(|network| network == "database");
        assert_eq!(sees_database, may_see_database, "{name}");
    }
    let compose = compose();
    assert_eq!(compose["networks"]["database"]["internal"], true);
    let caddyfile = compose["configs"]["caddyfile"]["content"].as_str().unwrap();
    for (name, service) in &services {
        let upstream = format!("{name}:7070");
        assert_eq!(
            mentions(caddyfile, &upstream),
            service.is_server(),
            "{name}"
        );
    }
    for (name, service) in &services {
        for (other, condition) in &service.depends_on {
            assert!(services.contains_key(other), "{name} waits for `{other}`");
            assert_eq!(condition["condition"], "service_healthy", "{name}");
        }
        assert_eq!(
            service.depends_on.contains_key("postgres"),
            service.is_server()
        );
    }
}

#[test]
fn secrets_are_files_and_go_to_whom_they_are_meant_for() {
    let services = services();
    let with = |secret: &str| -> Vec<&str> {
        let has = |service: &Service| service.secrets.iter().any(|name| name == secret);
        let found = services.iter().filter(|(_, service)| has(service));
        found.map(|(name, _)| name.as_str()).collect()
    };
    assert_eq!(with("tapedeck_token"), ["executor", "server-1", "server-2"]);
    assert_eq!(
        with("database_password"),
        ["postgres", "server-1", "server-2"]
    );
    let declared = compose()["secrets"].clone();
    assert_eq!(
        names(&declared),
        names(&json!({"tapedeck_token": 0, "database_password": 0}))
    );
    let mut complaints = Vec::new();
    for (name, secret) in declared.as_object().unwrap() {
        let file = secret["file"].as_str().unwrap_or_default();
        if !file.starts_with(".secrets/") {
            complaints.push(format!("`{name}` is not in `.secrets`"));
        }
        if !read(COMPOSE).contains(file.trim_start_matches(".secrets/")) {
            complaints.push(format!("nothing says how to make `{name}`"));
        }
    }
    for (name, service) in &services {
        let is_secret = |key: &str| key.contains("PASSWORD") || key.contains("TOKEN");
        for key in service.environment.keys() {
            if is_secret(key) && !key.ends_with("_FILE") {
                complaints.push(format!("{name}: `{key}` shows a secret"));
            }
        }
        let uses = [&service.command, &service.entrypoint].map(|words| words.join(" "));
        let variables: Vec<_> = service.environment.values().map(String::as_str).collect();
        let uses = [uses.concat(), variables.join(" ")].concat();
        for secret in &service.secrets {
            if !uses.contains(&format!("/run/secrets/{secret}")) {
                complaints.push(format!("{name} has `{secret}` and does not use it"));
            }
        }
    }
    assert_none("secrets", &complaints);
    assert!(read(".gitignore").lines().any(|line| line == "/.secrets"));
    let mut ignored = read(".dockerignore")
        .lines()
        .filter(|line| !line.starts_with('#'));
    assert_eq!(ignored.next(), Some("*"), "the image gets what is named");
}

#[test]
fn the_image_is_made_of_what_is_there() {
    let root = root();
    let missing: Vec<_> = read(".dockerignore")
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .filter(|name| !root.join(name).exists())
        .collect();
    assert_none("names that the image asks for in vain", &missing);
    let users = instructions("USER");
    assert_eq!(
        users,
        ["tapedeck:tapedeck"],
        "the image runs as a user of its own"
    );
    let bases = instructions("FROM");
    assert!(
        bases.len() == 2 && bases.iter().all(|base| base.contains("trixie")),
        "{bases:?}"
    );
}
