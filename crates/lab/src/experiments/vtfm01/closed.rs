//! What the experiments with closed-loop clients share.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use crate::bed::{Bed, Layout, SERVER_VETH_V4};
use crate::closed_loop::{self, Demand, Group, Outcome};
use crate::error::{Error, Result};
use crate::run::experiment::{Program, check_seconds};
use crate::run::results::{Facts, Sample, add_times};
use crate::server::pool::Occupation;
use crate::server::{FILE_BYTES, Server, ServerProgram, Spec};
use crate::weir::Weir;

/// Port of the server.
pub const PORT: u16 = 80;
/// As long as somaxconn of today's kernels is by default; the paper's clients fit in.
pub const BACKLOG: u32 = 4096;

/// The measuring window.
#[derive(Debug, Clone, clap::Args)]
pub struct WindowArgs {
    /// Length of the measuring window of each case, in s
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Load before the window, not counted, in s
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
}

impl WindowArgs {
    /// Refuses senseless values.
    pub fn check(&self) -> Result<()> {
        check_seconds("--seconds", self.seconds)?;
        match (0.0..=3600.0).contains(&self.warm_up) {
            true => Ok(()),
            false => Err(Error::usage(
                format!("bad --warm-up {}", self.warm_up),
                "it must be 0 to 3600 s",
            )),
        }
    }

    /// Load before the window.
    pub fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }

    /// The window.
    pub fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Servers to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerKind {
    /// Workers that wait for --service-ms with each connection
    Pool,
    /// Apache with the prefork model and a file of 8 KB
    Apache,
    /// nginx with a file of 8 KB
    Nginx,
}

/// The server under test, without its number of workers.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct ServerArgs {
    /// Server under test
    #[arg(long, value_enum, default_value = "pool")]
    pub server: ServerKind,
    /// How long a worker of the pool is busy with each connection, in ms
    #[arg(long, default_value_t = 10.0)]
    pub service_ms: f64,
}

impl ServerArgs {
    /// With so many workers.
    pub fn spec(&self, workers: usize) -> Spec {
        let program = match self.server {
            ServerKind::Apache => ServerProgram::Apache { workers },
            ServerKind::Nginx => ServerProgram::NginxWorkers(workers),
            ServerKind::Pool => ServerProgram::Pool {
                workers,
                service_us: (self.service_ms * 1e3) as u32,
                occupation: Occupation::Wait,
                body_bytes: FILE_BYTES,
                listeners: 1,
            },
        };
        Spec {
            program,
            port: PORT,
            backlog: BACKLOG,
        }
    }
}

/// The clients' address of a class; 1 is the highest.
pub fn address(class: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 66, 1, 10 + class)
}

/// Classes that have an address.
pub const CLASSES: u8 = 3;

/// So many greedy clients of a class.
pub fn greedy(class: u8, clients: usize) -> Group {
    Group {
        source: address(class),
        target: target(PORT),
        demand: Demand::Greedy { clients },
    }
}

/// The server's address at a port.
pub fn target(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(SERVER_VETH_V4, port)
}

/// A `[[class]]` of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ClassConfig {
    /// Its number, priority and address.
    pub class: u8,
    /// Connections/s and connections.
    pub rate: Option<(f64, u32)>,
}

/// A configuration with one listener and classes by source address, of which the number is the priority.
pub fn config(queue: &str, classes: &[ClassConfig]) -> String {
    let mut config =
        format!("[[listener]]\nname = \"web\"\naddress = \"0.0.0.0:{PORT}\"\n{queue}\n");
    for class in classes {
        let number = class.class;
        config += &format!(
            "[[class]]\nname = \"class{number}\"\nlistener = \"web\"\nfrom = \"{}\"\npriority = {number}\n",
            address(number)
        );
        if let Some((rate, burst)) = class.rate {
            config += &format!("rate = {rate}\nburst = {burst}\n");
        }
    }
    config
}

/// The classes 1 to so many, none of them policed.
pub fn unpoliced(classes: u8) -> Vec<ClassConfig> {
    let class = |class| ClassConfig { class, rate: None };
    (1..=classes).map(class).collect()
}

/// The order of the kernel, and its way with SYNs.
pub const FIFO: &str = "establish = \"default\"";
/// Ordered by weir, which then also counts the places; nobody is refused before they are all taken. `ageing`: a
/// time, or `off`.
pub fn priority(ageing: &str) -> String {
    format!(
        "establish = \"reserv\"\nadmit = \"queue\"\nqueue = \"priority\"\nageing = \"{ageing}\""
    )
}

/// Strictly by priority, as in the paper.
pub fn strict() -> String {
    priority("off")
}

/// Bed and window.
#[derive(Debug)]
pub struct ClosedLoop {
    /// Namespaces, wire, CPUs.
    pub bed: Bed,
    weir: Option<PathBuf>,
    /// Load before the window.
    pub warm_up: Duration,
    /// The window.
    pub window: Duration,
}

impl ClosedLoop {
    /// Builds the bed, with an address for each class of clients.
    pub fn build(window: &WindowArgs, program: &Program) -> Result<ClosedLoop> {
        let bed = Bed::build(Layout::of_this_machine())?;
        for class in 1..=CLASSES {
            let address = format!("{}/24", address(class));
            bed.clients.ip(&["addr", "add", &address, "dev", "veth0"])?;
        }
        // What the server receives is work of its own CPU, as if the clients were another machine.
        bed.server
            .steer_receive_work("veth0", bed.layout.server_cpu)?;
        Ok(ClosedLoop {
            bed,
            weir: program.weir.clone(),
            warm_up: window.warm_up(),
            window: window.window(),
        })
    }

    /// Measures one case: what each group of clients got. `config`: of weir, none without.
    pub fn clients(
        &self,
        spec: &Spec,
        config: Option<&str>,
        groups: &[Group],
    ) -> Result<Vec<Outcome>> {
        let mut server = Server::start(&self.bed, spec)?;
        let weir = config.map(|config| self.weir(config)).transpose()?;
        let cpu = Some(self.bed.layout.client_cpu);
        let outcomes = self.bed.clients.run_on(cpu, || {
            closed_loop::run(groups, FILE_BYTES, self.warm_up, self.window)
        })?;
        server.check_alive()?;
        weir.map_or(Ok(()), Weir::end)?;
        Ok(outcomes)
    }

    /// weir with a configuration.
    pub fn weir(&self, config: &str) -> Result<Weir<'_>> {
        Weir::run(&self.bed.server, self.weir.as_deref(), config)
    }

    /// Replies/s of the server without protection, when more clients ask than it has workers; from the facts if they
    /// have it.
    pub fn capacity(&self, facts: &mut Facts, spec: &Spec) -> Result<f64> {
        const CLIENTS: usize = 100;
        const NAME: &str = "capacity_per_s";
        facts.insert("server".into(), spec.describe().into());
        if let Some(known) = facts.get(NAME).and_then(serde_json::Value::as_f64) {
            return Ok(known);
        }
        let outcomes = self.clients(spec, None, &[greedy(3, CLIENTS)])?;
        let capacity = self.replies_per_s(&outcomes[0]);
        facts.insert(NAME.into(), capacity.into());
        Ok(capacity)
    }

    /// Complete replies/s.
    pub fn replies_per_s(&self, outcome: &Outcome) -> f64 {
        outcome.replies as f64 / self.window.as_secs_f64()
    }

    /// Adds what a group got: `NAME_replies_per_s` and so on. Times are from connect(), or the due time, to the end of
    /// the reply; `NAME_longest_wait_ms` is the longest that a request had waited when the window ended or its reply
    /// came; `NAME_kbytes_per_s` in units of 1000 bytes.
    pub fn add(&self, sample: &mut Sample, name: &str, outcome: &Outcome) {
        let seconds = self.window.as_secs_f64();
        for (metric, value) in [
            ("replies_per_s", self.replies_per_s(outcome)),
            ("kbytes_per_s", outcome.bytes as f64 / 1e3 / seconds),
            ("failures", outcome.failures as f64),
            ("longest_wait_ms", outcome.longest_wait.as_secs_f64() * 1e3),
        ] {
            sample.metrics.insert(format!("{name}_{metric}"), value);
        }
        add_times(sample, name, &outcome.response_us);
    }

    /// Adds what the classes got, the highest first.
    pub fn add_classes(&self, sample: &mut Sample, outcomes: &[Outcome]) {
        for (name, outcome) in CLASS_NAMES.iter().zip(outcomes) {
            self.add(sample, name, outcome);
        }
    }
}

/// Names of the classes in metrics and tables, the highest first.
pub const CLASS_NAMES: [&str; 3] = ["high", "middle", "low"];

/// Lines of a metric, one a class.
pub fn by_class(metric: &str) -> Vec<(String, String)> {
    CLASS_NAMES
        .map(|name| (format!("{name}_{metric}"), name.to_owned()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_s_number_is_its_priority_and_its_address() {
        let classes = [ClassConfig {
            class: 2,
            rate: Some((300.0, 5)),
        }];
        let config = config(&strict(), &classes);
        for line in [
            "priority = 2",
            "from = \"10.66.1.12\"",
            "rate = 300",
            "burst = 5",
        ] {
            assert!(
                config.lines().any(|found| found == line),
                "{line}: {config}"
            );
        }
    }
}
