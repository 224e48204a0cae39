//! Process sets. A process set is a communicator of some ranks of another communicator. Either all ranks of
//! the other one make it together, or only the ranks of the set do.
//!
//! Ranks agree on a new set as on any collective. Calls on the set are then identified by its ranks and by a
//! number, which each of its ranks counts by itself.

use std::sync::{Arc, Weak};

use ringpull_allreduce::progress::{Operation, Terms};
use ringpull_base::forked::OfProcess;
use ringpull_base::{Error, Key, Result};

use super::jobs::rendezvous;
use super::{Communicator, Zeros};

impl Communicator {
    /// Returns a communicator of the ranks `ranks` of this one, a process set, or `None` on a rank that is
    /// not among them. The ranks of the set are numbered in the order of `ranks`. Collective: every rank of
    /// this communicator passes the same `ranks`. All ranks of a set make their common sets in one order.
    /// Blocks.
    ///
    /// Once a job has a process set, a repeating sequence of operations of all ranks runs without messages
    /// only if no operation in it runs alone, sums are not MPI's own, and replicas are not compared.
    pub fn split(&self, ranks: &[usize]) -> Result<Option<Self>> {
        let members = self.members(ranks)?;
        self.agree_on(self.set.as_ref(), ranks)?;
        Ok(ranks.contains(&self.place).then(|| self.of_members(members)))
    }

    /// Returns a process set as [`split`](Self::split) does, but only the ranks of the set call it.
    pub fn subset(&self, ranks: &[usize]) -> Result<Self> {
        let members = self.members(ranks)?;
        if !ranks.contains(&self.place) {
            return Err(Error::argument(
                format!("a process set of ranks {ranks:?} made by rank {}, which is none of them", self.place),
                "call subset only on the ranks of the set, or split on every rank",
            ));
        }
        self.agree_on((!self.is_job(&members)).then_some(&members), ranks)?;
        Ok(self.of_members(members))
    }

    /// Returns the numbers that some of this communicator's ranks have in the job.
    fn members(&self, ranks: &[usize]) -> Result<Arc<[usize]>> {
        let size = self.size();
        if ranks.is_empty() || ranks.iter().any(|rank| *rank >= size) {
            return Err(Error::argument(
                format!("a process set of ranks {ranks:?}: the communicator has {size} ranks, counted from 0"),
                "give one or more ranks of the communicator",
            ));
        }
        if let Some(twice) = (1..ranks.len()).find(|at| ranks[..*at].contains(&ranks[*at])) {
            return Err(Error::argument(
                format!("a process set of ranks {ranks:?}: {} is named twice", ranks[twice]),
                "name each rank once",
            ));
        }
        Ok(ranks.iter().map(|rank| self.ranks[*rank]).collect())
    }

    /// Waits until the ranks of `set`, or all ranks of the job, make the process set of `ranks`.
    fn agree_on(&self, set: Option<&Arc<[usize]>>, ranks: &[usize]) -> Result<()> {
        let terms = Terms { arguments: format!("ranks {ranks:?}"), ..Terms::default() };
        // The list that identifies the call is sorted, so that ranks with lists in different orders get an
        // error.
        let set = set.map(|set| {
            let mut sorted = set.to_vec();
            sorted.sort_unstable();
            sorted
        });
        let set = set.filter(|sorted| !self.is_job(sorted)).map(Arc::from);
        let set = set.as_ref();
        // Calls on a set are identified by its ranks and a number. This call has a name instead.
        let name = set.map(|_| Key::from("process set"));
        self.call_among(set, name, Operation::split(), |site, reply| Ok((terms, rendezvous(&site, reply))))?.wait()
    }

    fn is_job(&self, members: &[usize]) -> bool {
        members.iter().copied().eq(0..self.engine.size())
    }

    /// Returns the communicator of these ranks of the job, which include this rank.
    fn of_members(&self, members: Arc<[usize]>) -> Self {
        let own = self.engine.rank();
        let place = members.iter().position(|rank| *rank == own).expect("this rank is one of the set");
        let is_whole = self.is_job(&members);
        let number = if is_whole { self.engine.next_store() } else { self.engine.next_set(self.generation, &members) };
        if is_whole {
            let stand_in: Weak<Zeros> = Arc::downgrade(&self.zeros);
            self.engine.introduce(number, stand_in);
        }
        Communicator {
            generation: self.generation,
            engine: OfProcess::new(Arc::clone(&self.engine)),
            number,
            set: (!is_whole).then(|| Arc::clone(&members)),
            ranks: members,
            place,
            hosts: Arc::clone(&self.hosts),
            output_limit: self.output_limit,
            zeros: Arc::clone(&self.zeros),
        }
    }
}
