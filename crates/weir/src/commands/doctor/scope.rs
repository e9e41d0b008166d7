//! Which network namespace the doctor has looked at: queues and sockets are those of one.

use serde::Serialize;
use weir_core::units::count;

use crate::host::containers;
use crate::host::namespaces::{self, Space};

/// Other namespaces that the text names.
const SHOWN: usize = 3;

/// A network namespace, and those beside it in which servers listen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Scope {
    /// What people call it; null: not known.
    name: Option<String>,
    /// The number of its inode; null likewise.
    inode: Option<u64>,
    /// The others in which a server listens.
    elsewhere: Vec<OtherNamespace>,
}

/// Another namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OtherNamespace {
    name: String,
    inode: u64,
    /// The command that looks there.
    command: String,
}

/// That of this process.
pub fn looked_at() -> Scope {
    let others = containers::spaces().into_iter();
    let mut ours = namespaces::ours();
    ours.iter_mut().for_each(containers::call_by_name);
    Scope::of(
        ours.as_ref(),
        others.filter(|space| !space.ports().is_empty()),
    )
}

impl Scope {
    fn of(ours: Option<&Space>, elsewhere: impl Iterator<Item = Space>) -> Scope {
        let other = |space: Space| OtherNamespace {
            name: space.describe(),
            inode: space.inode,
            command: format!("{} weir doctor", space.enter()),
        };
        Scope {
            name: ours.map(Space::describe),
            inode: ours.map(|space| space.inode),
            elsewhere: elsewhere.map(other).collect(),
        }
    }

    /// A paragraph with an empty line before it; empty if nothing is known.
    pub fn text(&self) -> String {
        let Some(name) = &self.name else {
            return String::new();
        };
        let mut text = format!("\nQueues and sockets are those of {name} only.\n");
        let rest = self.elsewhere.len().saturating_sub(SHOWN);
        for other in self.elsewhere.iter().take(SHOWN) {
            let OtherNamespace { name, command, .. } = other;
            text += &format!("Servers listen in {name}, too: `sudo {command}`\n");
        }
        if rest > 0 {
            text += &format!("and in {} more\n", count(rest, "network namespace"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::processes::Process;

    fn space(inode: u64, name: Option<&str>, comm: &str) -> Space {
        Space {
            name: name.map(str::to_owned),
            process: Some(Process {
                pid: 7,
                comm: comm.to_owned(),
                container: None,
            }),
            ..Space::new(inode)
        }
    }

    #[test]
    fn the_namespace_is_named_and_those_beside_it_with_the_command_that_looks_there() {
        let host = space(1, None, "kthreadd");
        let others = [space(2, Some("web"), "node"), space(3, None, "nginx")];
        let scope = Scope::of(Some(&host), others.into_iter());
        assert_eq!(
            scope.text(),
            "\nQueues and sockets are those of the machine's own network namespace only.\n\
             Servers listen in network namespace web, too: `sudo nsenter --net=/run/netns/web weir doctor`\n\
             Servers listen in the network namespace of nginx (pid 7), too: `sudo nsenter -t 7 --net weir doctor`\n"
        );
        let many = (2..7).map(|inode| space(inode, Some("web"), "node"));
        let text = Scope::of(Some(&host), many).text();
        assert!(
            text.ends_with("and in 2 network namespaces more\n"),
            "{text}"
        );
        assert_eq!(Scope::of(None, [].into_iter()).text(), "");
    }
}
