//! Chooses the connection that has to be closed when there are too many. Pure.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// The connections in the order of their arrival, by peer. A new connection always gets a place, because it needs the
/// place only for milliseconds and must not wait for idle connections. Another connection is closed for it: the oldest
/// of the same peer if that peer has its full share, and otherwise the oldest of the peer with the most connections.
#[derive(Debug)]
pub struct Crowd<T> {
    most: usize,
    most_of_peer: usize,
    peers: HashMap<IpAddr, VecDeque<(u64, T)>>,
    count: usize,
    next: u64,
}

impl<T> Crowd<T> {
    pub fn new(most: usize, most_of_peer: usize) -> Self {
        Crowd { most, most_of_peer, peers: HashMap::new(), count: 0, next: 0 }
    }

    /// Adds a connection. Returns the number of its place, and the connection to be closed, if any.
    pub fn enter(&mut self, peer: IpAddr, connection: T) -> (u64, Option<T>) {
        let full = self.peers.get(&peer).is_some_and(|own| own.len() >= self.most_of_peer);
        let leaves = if full {
            self.oldest_of(peer)
        } else if self.count >= self.most {
            self.greediest().and_then(|peer| self.oldest_of(peer))
        } else {
            None
        };
        let number = self.next;
        self.next += 1;
        self.count += 1;
        self.peers.entry(peer).or_default().push_back((number, connection));
        (number, leaves)
    }

    /// Frees a place. Does nothing if the place was already given to another connection.
    pub fn leave(&mut self, peer: IpAddr, number: u64) {
        let Some(own) = self.peers.get_mut(&peer) else { return };
        let Some(at) = own.iter().position(|(other, _)| *other == number) else { return };
        own.remove(at);
        self.removed_from(peer);
    }

    fn oldest_of(&mut self, peer: IpAddr) -> Option<T> {
        let (_, connection) = self.peers.get_mut(&peer)?.pop_front()?;
        self.removed_from(peer);
        Some(connection)
    }

    /// Returns the peer with the most connections. Of several such peers, returns the one with the oldest connection.
    fn greediest(&self) -> Option<IpAddr> {
        let first = |own: &VecDeque<(u64, T)>| own.front().map_or(u64::MAX, |(number, _)| *number);
        let most = self.peers.iter().max_by_key(|(_, own)| (own.len(), u64::MAX - first(own)));
        most.map(|(peer, _)| *peer)
    }

    fn removed_from(&mut self, peer: IpAddr) {
        self.count -= 1;
        if self.peers.get(&peer).is_some_and(VecDeque::is_empty) {
            self.peers.remove(&peer);
        }
    }
}

/// Returns the peer that a connection is counted for: an IPv4 address, or the /64 network that an IPv6 host usually has
/// to itself.
pub fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn over_its_share_a_peer_loses_its_own_oldest() {
        let mut crowd = Crowd::new(10, 2);
        assert_eq!(crowd.enter(peer(1), "a").1, None);
        assert_eq!(crowd.enter(peer(2), "b").1, None);
        assert_eq!(crowd.enter(peer(2), "c").1, None);
        assert_eq!(crowd.enter(peer(2), "d").1, Some("b"));
    }

    #[test]
    fn when_all_places_are_taken_the_greediest_loses_its_oldest() {
        let mut crowd = Crowd::new(3, 3);
        for (who, name) in [(1, "a"), (2, "b"), (2, "c")] {
            assert_eq!(crowd.enter(peer(who), name).1, None);
        }
        assert_eq!(crowd.enter(peer(3), "d").1, Some("b"));
        assert_eq!(crowd.enter(peer(4), "e").1, Some("a"), "all have one: the first that came");
    }

    #[test]
    fn places_come_back() {
        let mut crowd = Crowd::new(1, 1);
        let (first, _) = crowd.enter(peer(1), "a");
        crowd.leave(peer(1), first);
        let (second, leaves) = crowd.enter(peer(2), "b");
        assert_eq!(leaves, None);
        assert_eq!(crowd.enter(peer(3), "c").1, Some("b"));
        crowd.leave(peer(2), second);
        assert_eq!(crowd.enter(peer(4), "d").1, Some("c"), "who had to leave gives no place back");
    }

    #[test]
    fn a_host_of_ipv6_is_one_peer() {
        let of = |text: &str| peer_of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
