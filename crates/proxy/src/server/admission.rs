//! Whether a client may use the proxy, and what the proxy finds out about it before its first request.

use weir_core::class::OTHER_PRIORITY;
use weir_core::prefix::covers;
use weir_core::proxy::access::may_use;
use weir_core::proxy::{Forwarded, ProxyMode};

use super::client::{Admission, Client};
use super::worker::Worker;
use crate::address::canonical;
use crate::proxy_protocol::{self, ProxyHeader};

impl Client {
    /// Whether the client is let in. A client without the PROXY header that it must send is not, nor one that may not use
    /// the proxy. A client of HTTP that may not use the proxy is let in as far as its first request, to get a 403.
    pub async fn is_admitted(&mut self, worker: &Worker) -> bool {
        // Boxed: the task of every client is as large as its largest wait.
        if worker.settings.accept_proxy && !Box::pin(self.reads_proxy_header(worker)).await {
            self.stream.reset_on_close();
            worker.counters.clients_refused.add(1);
            return false;
        }
        self.admission = Admission::Admitted;
        let settings = &worker.settings;
        if !may_use(settings.mode, settings.clients(), self.source.ip()) {
            tracing::debug!("{} may not use the proxy", self.source);
            worker.counters.clients_refused.add(1);
            if settings.mode == ProxyMode::Tcp {
                self.stream.reset_on_close();
                return false;
            }
            self.admission = Admission::Denied;
        }
        if worker.settings.forwarded != Forwarded::Off {
            self.rare().announced = Some(self.source.ip().to_string());
        }
        if worker.settings.max_connections > 0 {
            let class = worker
                .classes
                .classify_with(self.source, || self.destination(), 0);
            let class = class.map(|class| worker.settings.classes[class].priority);
            self.rare().rank = class.unwrap_or(OTHER_PRIORITY) - 1;
        }
        true
    }

    /// Reads the PROXY header. False if there is none, or the peer may not send one.
    async fn reads_proxy_header(&mut self, worker: &Worker) -> bool {
        let trust = &worker.settings.trust;
        if !trust.is_empty() && !covers(trust, self.source.ip()) {
            tracing::debug!("{} may not send a PROXY header", self.source);
            return false;
        }
        worker.handle.set_deadline(worker.settings.head_timeout);
        loop {
            match proxy_protocol::read(self.buffer.bytes()) {
                Ok(Some(header)) => {
                    self.apply(header);
                    return true;
                }
                Ok(None) => self.buffer.shrink(),
                Err(error) => {
                    tracing::debug!("{}: {error}", self.source);
                    return false;
                }
            }
            if !matches!(self.receive(&worker.resources.buffers).await, Ok(1..)) {
                return false;
            }
        }
    }

    fn apply(&mut self, header: ProxyHeader) {
        self.buffer.consume(header.len);
        if let Some(endpoints) = header.endpoints {
            self.source = canonical(endpoints.source);
            self.rare().destination = Some(endpoints.destination);
        }
    }
}
