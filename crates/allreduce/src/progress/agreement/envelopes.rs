//! Pairs sends and receives.
//!
//! The rule is MPI's. Rank 0 has the calls of each rank in the order in which the rank made them. A receive
//! from a named rank takes the first message of that rank that no other receive has taken. A receive from any
//! rank takes the message that was announced first. A message goes to the first receive of its destination
//! that takes it, whether that receive names the sender or not. So messages with one tag from one rank to
//! another do not overtake each other. Rank 0 decides once which message a receive gets, and both ends follow
//! its decision. If two ranks send and one receive from any rank waits, it gets the message whose call
//! reaches rank 0 first.
//!
//! A rank counts its sends and receives. A launch identifies the call of each of the two ranks by that rank's
//! count.

use ringpull_base::Error;

use crate::progress::agreement::disagreement::disagreement;
use crate::progress::agreement::{Agreement, PendingOperation, refuse};
use crate::progress::messages::{Call, Envelope, Launch, Order, Peering, Topic};

type CallName = (Topic, u64);

impl Agreement {
    /// Records a rank's call of a send or a receive, and returns the orders that follow from it.
    pub(super) fn message(
        &mut self,
        rank: usize,
        envelope: &Envelope,
        call: Call,
        now_s: f64,
    ) -> Result<Vec<Order>, Error> {
        self.heard_s = now_s;
        if !self.is_sound(rank, envelope) {
            let what = format!("a message {} of ranks {:?}", call.topic.key(), envelope.among);
            return Err(Error::protocol(None, format!("rank {rank}"), what));
        }
        let name = (call.topic.clone(), call.ordinal);
        let Some((other, pending)) = self.counterpart(envelope).and_then(|other| self.of_sets.remove_entry(&other))
        else {
            let mut pending = PendingOperation::new(self.size, Some(self.ranks_of(envelope)), now_s);
            pending.take(rank, call);
            self.of_sets.insert(name, pending);
            return self.check_left().map(|()| Vec::new());
        };
        let (sender, receiver) = if is_send(envelope) { (name, other) } else { (other, name) };
        let mut both = pending;
        if !both.take(rank, call) {
            let fault = disagreement(&both);
            return Ok(vec![refuse(&sender, fault.clone()), refuse(&receiver, fault)]);
        }
        let (number, from) = (self.next_of_sets(), sender.0.set().and_then(<[usize]>::first).copied());
        let launch = |(topic, ordinal), from| Order::Launch(Launch { topic, ordinal, number, call: None, from });
        Ok(vec![launch(sender, None), launch(receiver, from)])
    }

    /// Returns true if the rank may have made this call.
    fn is_sound(&self, rank: usize, envelope: &Envelope) -> bool {
        let is_one = |rank: usize| match &envelope.among {
            Some(ranks) => rank < self.size && ranks.contains(&rank),
            None => rank < self.size,
        };
        let other = envelope.peer.rank();
        let is_all = envelope.among.iter().flatten().all(|rank| *rank < self.size);
        is_all && envelope.rank == rank && is_one(rank) && other.is_none_or(|other| other != rank && is_one(other))
    }

    /// The ranks that may be the sender or the receiver of the message.
    fn ranks_of(&self, envelope: &Envelope) -> Vec<usize> {
        envelope.peer.rank().map_or_else(|| self.all_of(envelope), |other| vec![envelope.rank, other])
    }

    fn all_of(&self, envelope: &Envelope) -> Vec<usize> {
        envelope.among.clone().unwrap_or_else(|| (0..self.size).collect())
    }

    /// Returns the matching call of the other rank, if it was made.
    fn counterpart(&self, envelope: &Envelope) -> Option<CallName> {
        let of = |rank: usize, peer: Peering| Topic::Message(Envelope { rank, peer, ..envelope.clone() });
        let own = envelope.rank;
        match envelope.peer {
            Peering::To(to) => {
                let receives = [Some(own), None].map(|from| self.first(of(to, Peering::From(from))));
                receives.into_iter().flatten().min_by_key(|((_, ordinal), _)| *ordinal).map(|(name, _)| name)
            }
            Peering::From(Some(from)) => self.first(of(from, Peering::To(own))).map(|(name, _)| name),
            Peering::From(None) => {
                let sends = self.all_of(envelope).into_iter().filter_map(|from| self.first(of(from, Peering::To(own))));
                sends.min_by(|(_, a), (_, b)| a.since_s.total_cmp(&b.since_s)).map(|(name, _)| name)
            }
        }
    }

    /// Returns the first call on this topic that is not yet paired.
    fn first(&self, topic: Topic) -> Option<(CallName, &PendingOperation)> {
        let (name, pending) = self.of_sets.range((topic.clone(), 0)..=(topic, u64::MAX)).next()?;
        Some((name.clone(), pending))
    }
}

fn is_send(envelope: &Envelope) -> bool {
    matches!(envelope.peer, Peering::To(_))
}
