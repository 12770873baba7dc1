//! What a client talks through: one boxed service, whether it ends in a socket or in a router.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use url::Url;

use crate::call::Options;
use crate::error::Error;
use crate::secret::Secret;

/// Any error of a transport.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of every request: whole, so that it can be sent again.
pub type RequestBody = Full<Bytes>;
/// The body of every answer.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

type BoxedService = BoxCloneSyncService<Request<RequestBody>, Response<ResponseBody>, BoxError>;

/// The address in-process services are called by; a loopback name passes the server's host check.
const IN_PROCESS_URL: &str = "http://localhost/";
/// How long a TCP connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// A client of one server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    service: BoxedService,
    pub(crate) target: Arc<Target>,
}

/// Where requests go, and how they are made.
pub(crate) struct Target {
    pub(crate) base: Url,
    pub(crate) host: HeaderValue,
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) options: Options,
}

/// Which server could not be reached.
#[derive(Debug, thiserror::Error)]
#[error("{base}")]
struct Away {
    base: Url,
    source: BoxError,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("base", &self.target.base.as_str())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of a remote server, over HTTP or HTTPS with the system's certificates.
    pub fn http(base_url: &str, token: Option<&Secret>) -> Result<Self, Error> {
        let target = Target::new(base_url, token)?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let mut builder = HyperClient::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE);
        // Certificates are only looked for where they are needed: some machines have none.
        if target.base.scheme() == "https" {
            let connector = hyper_rustls::HttpsConnectorBuilder::new()
                .with_native_roots()
                .map_err(|error| Error::Request(format!("no certificates: {error}")))?
                .https_only()
                .enable_http1()
                .wrap_connector(connector);
            Ok(Self::new(builder.build(connector), target))
        } else {
            Ok(Self::new(builder.build(connector), target))
        }
    }

    /// A client of a service in this process, e.g. the server's router.
    pub fn in_process<S, B>(service: S, token: Option<&Secret>) -> Result<Self, Error>
    where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Ok(Self::new(service, Target::new(IN_PROCESS_URL, token)?))
    }

    fn new<S, B>(service: S, target: Target) -> Self
    where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let boxed = service
            .map_err(Into::into)
            .map_response(|response: Response<B>| {
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            });
        Self {
            service: BoxCloneSyncService::new(boxed),
            target: Arc::new(target),
        }
    }

    /// The same client with other options.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        let target = &self.target;
        self.target = Arc::new(Target {
            base: target.base.clone(),
            host: target.host.clone(),
            authorization: target.authorization.clone(),
            options,
        });
        self
    }

    /// The server's address.
    pub fn base_url(&self) -> &Url {
        &self.target.base
    }

    /// Sends one request once and gives the head of the answer with its body still to be read.
    pub(crate) fn exchange(
        &self,
        request: Request<RequestBody>,
    ) -> BoxFuture<'static, Result<Response<ResponseBody>, Error>> {
        let (service, target) = (self.service.clone(), Arc::clone(&self.target));
        Box::pin(async move {
            service.oneshot(request).await.map_err(|source| {
                let connect = source.downcast_ref::<hyper_util::client::legacy::Error>();
                let sent = !connect.is_some_and(hyper_util::client::legacy::Error::is_connect);
                let base = target.base.clone();
                let source = Away { base, source }.into();
                Error::Transport { source, sent }
            })
        })
    }
}

impl Target {
    fn new(base_url: &str, token: Option<&Secret>) -> Result<Self, Error> {
        let base = Url::parse(base_url)
            .map_err(|error| Error::Request(format!("`{base_url}` is no URL: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(Error::Request(format!(
                "`{base_url}` is no http or https URL"
            )));
        }
        let host = match (base.host_str(), base.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (Some(host), None) => host.to_owned(),
            (None, _) => return Err(Error::Request(format!("`{base_url}` names no host"))),
        };
        let host = HeaderValue::try_from(host).map_err(request_error)?;
        let authorization = token.map(authorization).transpose()?;
        Ok(Self {
            base,
            host,
            authorization,
            options: Options::default(),
        })
    }
}

fn authorization(token: &Secret) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose()))
        .map_err(|_source| Error::Request("the token holds characters no header can".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn request_error(error: impl fmt::Display) -> Error {
    Error::Request(error.to_string())
}
