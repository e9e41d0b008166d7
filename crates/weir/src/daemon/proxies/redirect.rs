//! What engine sockmap needs of the kernel.

use std::sync::Arc;

use weir_core::proxy::{Engine, Proxy};
use weir_core::redirect::Redirector;
use weir_kernel::{Error, Splice};

use crate::failure::{Failure, Result};

/// What the proxy hands tunnels of short messages to, if its engine is the one that does.
///
/// # Errors
/// Not supported here, which missing rights are too: who asked for this engine gets it or nothing.
pub fn redirector(proxy: &Proxy) -> Result<Option<Arc<dyn Redirector>>> {
    if proxy.engine != Engine::Sockmap {
        return Ok(None);
    }
    match Splice::load() {
        Ok(splice) => Ok(Some(Arc::new(splice))),
        Err(error) => Err(unsupported(&error)),
    }
}

fn unsupported(error: &Error) -> Failure {
    let hint = match error {
        Error::Denied { .. } => "run it as root, or use engine \"auto\", which needs no rights",
        Error::Unsupported { hint, .. } => hint,
        Error::Failed { .. } => {
            "`weir doctor` tells what this kernel has; engine \"auto\" works everywhere"
        }
    };
    Failure::unsupported(format!("no engine \"sockmap\" here: {error}"), hint)
}
