//! `weir detach`: takes all protection off, whichever weir put it on, also what one that was killed has left.

use std::path::Path;

use weir_api::{Answer, Question};

use crate::cli::Detach;
use crate::commands::status::elsewhere;
use crate::daemon::proxies::sweep_left_over;
use crate::failure::Result;
use crate::ipc::control::{another_answer, ask, namespace, sweep};
use crate::shape::interface;
use crate::shape::lock::Changes;
use crate::show::output::print;

/// Runs the command. The guard's BPF links live as long as their process. The program that steers
/// connections lives as long as the server's socket.
pub fn run(runtime_dir: &Path, args: &Detach) -> Result<()> {
    let namespace = namespace()?;
    let question = match args.left_over {
        true => Question::Status,
        false => Question::Detach,
    };
    sweep_left_over(runtime_dir)?;
    match ask(runtime_dir, namespace, &question)? {
        Some(_) if args.left_over => {
            print("a weir is running in this network namespace; it stays\n")
        }
        Some(Answer::Detached { pid }) => print(&format!(
            "weir (pid {pid}) has ended; nothing is attached any more\n"
        )),
        Some(_) => Err(another_answer()),
        None => {
            sweep(runtime_dir, namespace)?;
            let undone = weir_kernel::queue::undo()?;
            let shaped = interface::remove_left_over(&Changes::new(runtime_dir)?)?;
            let left = left(undone, &shaped);
            print(&format!(
                "no weir is running in this network namespace; {left}\n"
            ))?;
            match elsewhere(runtime_dir, "detach") {
                Some(other) if !args.left_over => print(&format!("{other}\n")),
                _ => Ok(()),
            }
        }
    }
}

fn left(sockets: u32, shaped: &[String]) -> String {
    let sockets = match sockets {
        0 => None,
        1 => Some("1 listening socket".to_owned()),
        n => Some(format!("{n} listening sockets")),
    };
    let places: Vec<String> = sockets.into_iter().chain(shaped.iter().cloned()).collect();
    match places[..] {
        [] => "nothing is attached".to_owned(),
        _ => format!(
            "taken off: what one that was killed had left on {}",
            places.join(", ")
        ),
    }
}
