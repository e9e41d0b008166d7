//! Engine sockmap: the kernel's redirecting, as the proxy wants it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weir_core::proxy::{Engine, Proxy};
use weir_kernel::{Error, Splice, SpliceLane, SplicePair};
use weir_proxy::transfer::{RedirectLane, RedirectPair, Redirector, SocketPair, Way};

use crate::failure::{Failure, Result};

/// Loads the program that redirects the short messages of tunnels, if the proxy's engine is sockmap.
///
/// # Errors
/// This kernel does not support it, or the process lacks the rights: there is no fallback to another
/// engine.
pub fn redirector(proxy: &Proxy) -> Result<Option<Arc<dyn Redirector>>> {
    if proxy.engine != Engine::Sockmap {
        return Ok(None);
    }
    match Splice::load() {
        Ok(splice) => Ok(Some(Arc::new(Kernel(splice)))),
        Err(error) => Err(unsupported(&error)),
    }
}

fn unsupported(error: &Error) -> Failure {
    let hint = match error {
        Error::Denied { .. } | Error::NoEntry { .. } => {
            "run it as root, or use engine \"auto\", which needs no rights; proxies that run have given rights up that they \
             did not need: start a successor, `weir proxy --take-over`"
        }
        Error::Unsupported { hint, .. } => hint,
        Error::Failed { .. } => {
            "`weir doctor` tells what this kernel has; engine \"auto\" works everywhere"
        }
    };
    Failure::unsupported(format!("no engine \"sockmap\" here: {error}"), hint)
}

#[derive(Debug)]
struct Kernel(Splice);

impl Redirector for Kernel {
    fn lane(&self) -> io::Result<Box<dyn RedirectLane>> {
        let lane = self.0.lane().map_err(io::Error::other)?;
        Ok(Box::new(Lane(lane)))
    }
}

struct Lane(SpliceLane);

impl RedirectLane for Lane {
    fn passed_fd(&self) -> BorrowedFd<'_> {
        self.0.ring_fd()
    }

    fn take_passed(&self) -> Vec<u32> {
        self.0.take_passed()
    }

    fn join(&self, sockets: SocketPair<'_>) -> Option<Box<dyn RedirectPair>> {
        let pair = self.0.join(sockets)?;
        Some(Box::new(Pair(pair)))
    }
}

struct Pair(SplicePair);

impl RedirectPair for Pair {
    fn number(&self) -> u32 {
        self.0.number()
    }

    fn arm(&self, sockets: SocketPair<'_>, received: [u64; 2]) -> bool {
        self.0.arm(sockets, received)
    }

    fn disarm(&self, sockets: SocketPair<'_>) {
        self.0.disarm(sockets);
    }

    fn redirected(&self, way: Way) -> u64 {
        self.0.redirected(way)
    }

    fn passed(&self, way: Way) -> u64 {
        self.0.passed(way)
    }

    fn is_sent(&self, way: Way, sockets: SocketPair<'_>) -> bool {
        self.0.is_sent(way, sockets)
    }

    fn has_lost(&self, way: Way) -> bool {
        self.0.has_lost(way)
    }

    fn leave(self: Box<Self>, sockets: SocketPair<'_>) {
        self.0.leave(sockets);
    }
}
