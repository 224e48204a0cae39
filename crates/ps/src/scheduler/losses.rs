//! Servers that are lost in a job whose servers hold each other's values.
//!
//! Who notices a loss reports it: the scheduler itself, or a worker that does not reach the server. From then
//! on it is lost for all, so that no worker waits for what another does not send.

use ringpull_base::config::Role;
use ringpull_base::notice;

use super::{JobPhase, Scheduler, lost_node};
use crate::message::FromScheduler;
use crate::shard::holders;

impl Scheduler {
    /// A worker does not reach this server.
    pub(super) fn take_loss(&mut self, from: Role, rank: usize, cause: &str) -> Result<(), String> {
        let is_one = rank < self.settings.num_servers && self.goes_on_without_servers();
        if from != Role::Worker || !is_one {
            return Err("a lost server that is none".to_owned());
        }
        self.lose_server(rank, None, cause);
        Ok(())
    }

    /// Whether servers of this job hold each other's values, and have them.
    pub(super) fn goes_on_without_servers(&self) -> bool {
        self.settings.replicas > 1 && (self.complete || self.returning.is_some())
    }

    /// The servers that were lost before and have held values of this one, if nobody holds these without it.
    fn lost_before(&self, rank: usize) -> Option<String> {
        let gone = |server: usize| server == rank || self.lost_servers.contains_key(&server);
        let servers = self.settings.num_servers;
        let of_shard = |shard: usize| holders(shard, servers, self.settings.replicas);
        let shard = (0..servers).find(|shard| of_shard(*shard).all(gone))?;
        let before = of_shard(shard).filter_map(|server| self.lost_servers.get(&server));
        Some(before.map(String::as_str).collect::<Vec<_>>().join(" and "))
    }

    /// A server is lost, which may not have come back to this scheduler; then it has this name. The job goes on
    /// if other servers hold all of its values, and else fails.
    pub(super) fn lose_server(&mut self, rank: usize, name: Option<String>, cause: &str) {
        if self.phase != JobPhase::Running || self.lost_servers.contains_key(&rank) {
            return;
        }
        let is_it = |node: &super::Node| node.info.role == Role::Server && node.rank == rank;
        let index = self.nodes.iter().position(is_it);
        let name = index.map(|index| self.nodes[index].name()).or(name).unwrap_or_else(|| format!("server {rank}"));
        if let Some(before) = self.lost_before(rank) {
            let cause = format!("{cause}, and so was before it {before}, which held the same values");
            return self.fail(&lost_node(name, None, cause));
        }
        let left = self.settings.num_servers - self.lost_servers.len() - 1;
        notice(&format!(
            "ringpull: {name} is lost: {cause}; the job goes on with {left} server(s), which have its values"
        ));
        self.lost_servers.insert(rank, name.clone());
        if let Some(index) = index {
            // It may be alive, and be heard again.
            let node = self.nodes.remove(index);
            self.outputs.push((node.identity, FromScheduler::Abort(lost_node(name, None, cause.to_owned()))));
        }
        self.nodes.iter_mut().for_each(|node| node.waits = None);
        self.tell(Role::Worker, &FromScheduler::ServerLost { rank });
    }
}
