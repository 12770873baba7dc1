//! The tapedeck binary.

mod demo_agent;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("demo-agent") {
        let state_dir = std::env::var_os("TAPEDECK_DEMO_STATE").map(Into::into);
        return demo_agent::serve_stdio(demo_agent::Options { state_dir }).await;
    }
    anyhow::bail!("there is only `tapedeck demo-agent`")
}
