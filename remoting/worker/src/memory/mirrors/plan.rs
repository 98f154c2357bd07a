//! Plans how to read mirrors with as few copies and buffers as their addresses allow. It also groups mirrors, so that
//! one query tells which parts of a group were written. Pure.

use driverapi::written::PAGE;
use protocol::BULK_CHUNK;
use std::ops::Range;
use std::rc::Rc;

/// The largest gap in bytes between two mirrors in the same memory that one copy reads together.
const GAP: u64 = 16 << 10;
/// Limit on the copies of one window. The stream of a driver takes about 1,024 operations before it blocks.
const MOST_SPANS: usize = 96;
/// The size in bytes of the smallest group for which the driver is asked about writes. Reading fewer bytes is faster
/// than asking.
const LEAST_NOTED: u64 = 8 * PAGE as u64;

/// The part of a mirror to read, the address of the mirror, and the stream that reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub mirror: u64,
    pub context: u64,
    pub stream_id: u64,
    pub address: u64,
    /// The range of offsets in the mirror to read.
    pub stretch: Range<usize>,
}

impl Place {
    fn start(&self) -> u64 {
        self.address + self.stretch.start as u64
    }

    fn end(&self) -> u64 {
        self.address + self.stretch.end as u64
    }

    /// Returns the part of this place in a range of addresses, or `None` if they do not overlap.
    fn within(&self, part: &Range<u64>) -> Option<Place> {
        let (start, end) = (self.start().max(part.start), self.end().min(part.end));
        let stretch = || (start - self.address) as usize..(end - self.address) as usize;
        (start < end).then(|| Place { stretch: stretch(), ..self.clone() })
    }

    /// Returns the pages of this place. If they are all mapped (`is_mapped`), pages that it covers only in part are
    /// included. Otherwise only whole pages are returned.
    pub fn pages(&self, is_mapped: impl Fn(u64, u64) -> bool) -> Range<u64> {
        let (page, start, end) = (PAGE as u64, self.start(), self.end());
        let all = start / page * page..end.next_multiple_of(page);
        if is_mapped(all.start, all.end - all.start) { all } else { start.next_multiple_of(page)..end / page * page }
    }
}

/// A group of adjacent mirrors. One query asks the driver which parts of the group were written.
pub struct Group {
    pages: Range<u64>,
    /// The mirrors of the group, sorted by address.
    pub members: Vec<Place>,
    /// The parts of the members outside of the pages.
    edges: Vec<Place>,
    was_asked: bool,
}

impl Group {
    /// Returns the places that may have been written since the last call, or `None` if the driver cannot tell.
    /// `written` asks the driver about whole pages.
    pub fn suspects<E>(&mut self, written: impl Fn(Range<u64>) -> Result<Vec<Range<u64>>, E>) -> Option<Vec<Place>> {
        let found = if std::mem::replace(&mut self.was_asked, true) {
            written(self.pages.clone()).ok()?
        } else {
            // The driver may have been asked about some of these pages before. New pages all count as written.
            let (mut found, mut start) = (Vec::new(), self.pages.start);
            for member in &self.members {
                let end = member.end().next_multiple_of(PAGE as u64).min(self.pages.end);
                if start < end {
                    found.extend(written(start..end).ok()?);
                    start = end;
                }
            }
            found
        };
        let mut all = self.edges.clone();
        for part in &found {
            let first = self.members.partition_point(|member| member.end() <= part.start);
            all.extend(self.members[first..].iter().map_while(|member| member.within(part)));
        }
        Some(all)
    }
}

/// Groups the mirrors at these places. Also returns the places that belong to no group.
pub fn groups(mut places: Vec<Place>, is_mapped: impl Fn(u64, u64) -> bool) -> (Vec<Group>, Vec<Place>) {
    places.sort_by_key(|place| place.address);
    let mut all: Vec<Group> = Vec::new();
    for place in places {
        let pages = place.pages(&is_mapped);
        let beside = all.last_mut().filter(|last| last.pages.contains(&pages.start) || last.pages.end == pages.start);
        match beside.filter(|last| is_mapped(last.pages.start, pages.end.saturating_sub(last.pages.start))) {
            Some(last) => {
                last.pages.end = last.pages.end.max(pages.end);
                last.members.push(place);
            }
            None => all.push(Group { pages, members: vec![place], edges: Vec::new(), was_asked: false }),
        }
    }
    let (mut large, small): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|group| group.pages.end.saturating_sub(group.pages.start) >= LEAST_NOTED);
    for group in &mut large {
        let outside = [0..group.pages.start, group.pages.end..u64::MAX];
        let edges = group.members.iter().flat_map(|member| outside.iter().filter_map(|part| member.within(part)));
        group.edges = edges.collect();
    }
    (large, small.into_iter().flat_map(|group| group.members).collect())
}

/// A part of a mirror, and its offset (`from`) in a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub mirror: u64,
    pub at: usize,
    pub len: usize,
    pub from: usize,
}

impl Part {
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// A copy that reads adjacent parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub address: u64,
    pub len: usize,
    pub to: usize,
}

/// The copies that fill one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub context: u64,
    pub stream_id: u64,
    pub spans: Vec<Span>,
    pub parts: Vec<Part>,
    pub len: usize,
}

impl Window {
    fn new(place: &Place) -> Window {
        Window { context: place.context, stream_id: place.stream_id, spans: Vec::new(), parts: Vec::new(), len: 0 }
    }

    /// Adds a part of a mirror to the window. The last copy is extended if the gap before the part may be read too.
    /// Returns false if the window is full.
    fn take(&mut self, place: &Place, at: usize, len: usize, is_mapped: impl Fn(u64, u64) -> bool) -> bool {
        let address = place.address + at as u64;
        let end = self.spans.last().map(|span| span.address + span.len as u64);
        let gap = end.and_then(|end| address.checked_sub(end).filter(|gap| *gap <= GAP).map(|gap| (end, gap)));
        // Neighbours may be in two pieces of memory, such as the variables of two modules.
        let gap = gap.filter(|(end, gap)| is_mapped(*end, *gap)).map(|(_, gap)| gap as usize);
        let room = self.len + gap.unwrap_or(0) + len <= BULK_CHUNK;
        if self.context != place.context || self.stream_id != place.stream_id || !room {
            return false;
        }
        if let (Some(gap), Some(last)) = (gap, self.spans.last_mut()) {
            last.len += gap + len;
            self.len += gap;
        } else if self.spans.len() < MOST_SPANS {
            self.spans.push(Span { address, len, to: self.len });
        } else {
            return false;
        }
        self.parts.push(Part { mirror: place.mirror, at, len, from: self.len });
        self.len += len;
        true
    }

    /// Returns windows for the parts of the other mirrors, one for each part. The memory of `mirror`, which was
    /// removed, may be gone.
    pub fn without(self: Rc<Window>, mirror: u64, places: &[Place]) -> Vec<Rc<Window>> {
        if self.parts.iter().all(|part| part.mirror != mirror) {
            return vec![self];
        }
        let of = |part: &Part| places.iter().find(|place| place.mirror == part.mirror);
        let rest = self.parts.iter().filter_map(|part| Some((part, of(part)?)));
        let alone = rest.map(|(part, place)| {
            let mut window = Window::new(place);
            window.take(place, part.at, part.len, |_, _| false);
            Rc::new(window)
        });
        alone.collect()
    }
}

/// Returns windows that read the mirrors at these places. `is_mapped` says whether one piece of memory contains a range
/// of bytes, the byte before it and the byte after it.
pub fn windows(mut places: Vec<Place>, is_mapped: impl Fn(u64, u64) -> bool) -> Vec<Rc<Window>> {
    places.sort_by_key(|place| (place.context, place.stream_id, place.address + place.stretch.start as u64));
    let mut all: Vec<Window> = Vec::new();
    for place in &places {
        let mut at = place.stretch.start;
        while at < place.stretch.end {
            let len = (place.stretch.end - at).min(BULK_CHUNK);
            let taken = all.last_mut().is_some_and(|last| last.take(place, at, len, &is_mapped));
            if !taken {
                let mut window = Window::new(place);
                window.take(place, at, len, &is_mapped);
                all.push(window);
            }
            at += len;
        }
    }
    all.into_iter().map(Rc::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(mirror: u64, address: u64, size: usize) -> Place {
        Place { mirror, context: 1, stream_id: 2, address, stretch: 0..size }
    }

    /// Returns every byte of every mirror as (mirror, offset), and the address that it is read from.
    fn read(windows: &[Rc<Window>]) -> Vec<(u64, usize, u64)> {
        let mut all = Vec::new();
        for window in windows {
            assert!(window.len <= BULK_CHUNK && window.spans.len() <= MOST_SPANS);
            for part in &window.parts {
                let span = window.spans.iter().find(|span| (span.to..span.to + span.len).contains(&part.from)).unwrap();
                assert!(part.from + part.len <= span.to + span.len);
                let address = |byte: usize| span.address + (part.from - span.to + byte) as u64;
                all.extend((0..part.len).step_by(64).map(|byte| (part.mirror, part.at + byte, address(byte))));
            }
        }
        all.sort_unstable();
        all
    }

    fn oracle(places: &[Place]) -> Vec<(u64, usize, u64)> {
        let bytes = |p: &Place| {
            let (mirror, address) = (p.mirror, p.address);
            p.stretch.clone().step_by(64).map(move |at| (mirror, at, address + at as u64))
        };
        let mut all: Vec<_> = places.iter().flat_map(bytes).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn neighbours_are_read_by_one_copy_and_every_byte_from_its_place() {
        let beside: Vec<Place> = (0..104).map(|i| place(i, 0x1000 * i, 4096)).collect();
        let windows = super::windows(beside.clone(), |_, _| true);
        assert_eq!((windows.len(), windows[0].spans.len()), (1, 1));
        assert_eq!(read(&windows), oracle(&beside));
        let mut apart: Vec<Place> = (0..300).map(|i| place(i, 0x10_0000 * (300 - i), 128)).collect();
        apart.push(place(300, 1 << 40, 3 * BULK_CHUNK + 64));
        apart.push(Place { context: 7, ..place(301, (1 << 40) + 3 * BULK_CHUNK as u64 + 64, 64) });
        let windows = super::windows(apart.clone(), |_, _| true);
        assert_eq!(read(&windows), oracle(&apart));
    }

    #[test]
    fn of_a_stretch_nothing_else_is_read() {
        let far = BULK_CHUNK + 4096;
        let all = [place(1, 1 << 20, 3 * BULK_CHUNK), place(2, 0, 8192)];
        let parts = [(0, 4096..8192), (0, far..far + 64), (1, 4096..8192), (0, 2 * BULK_CHUNK - 64..3 * BULK_CHUNK)];
        let places: Vec<Place> =
            parts.iter().map(|(one, stretch)| Place { stretch: stretch.clone(), ..all[*one].clone() }).collect();
        assert_eq!(read(&super::windows(places.clone(), |_, _| true)), oracle(&places));
    }

    #[test]
    fn what_is_not_mapped_is_not_read() {
        let near = vec![place(1, 0, 64), place(2, 128, 64), place(3, 256, 64), place(4, 320, 64)];
        let windows = super::windows(near.clone(), |at, _| at == 64);
        let spans: Vec<(u64, usize)> = windows[0].spans.iter().map(|span| (span.address, span.len)).collect();
        assert_eq!(spans, [(0, 192), (256, 64), (320, 64)]);
        assert_eq!(read(&windows), oracle(&near));
    }

    #[test]
    fn of_a_mirror_that_has_ended_nothing_is_read() {
        let places = vec![place(1, 0, 64), place(2, 64, 64), place(3, 128, 64)];
        let windows = super::windows(places.clone(), |_, _| true);
        let rest = [places[0].clone(), places[2].clone()];
        let left: Vec<_> = windows.into_iter().flat_map(|window| window.without(2, &rest)).collect();
        assert_eq!(read(&left), oracle(&rest));
        assert!(left.iter().flat_map(|window| &window.spans).all(|span| span.len == 64));
    }

    /// Returns mirrors of a page, of parts of pages, next to each other, and apart.
    fn scattered() -> Vec<Place> {
        let mut all: Vec<Place> = (0..104).map(|i| place(i, 0x10_0000 + 0x1000 * i, 4096)).collect();
        all.extend((0..30).map(|i| place(200 + i, 0x30_0000 + 0x600 * i, 0x500)));
        all.extend([place(300, 0x50_0800, 0x1_0000), place(301, 0x60_0000, 0x6000), place(302, 0x70_0800, 0x9000)]);
        all
    }

    /// Simulates a piece of memory that contains the third mirror, a part of a page at its end, and nothing after it.
    fn is_mapped(start: u64, len: u64) -> bool {
        (0x10_0000..0x70_0800).contains(&start) && start + len <= 0x60_6000
    }

    #[test]
    fn the_driver_is_asked_of_neighbours_at_once() {
        let (groups, small) = super::groups(scattered(), is_mapped);
        let pages: Vec<Range<u64>> = groups.iter().map(|group| group.pages.clone()).collect();
        assert_eq!(pages, [0x10_0000..0x16_8000, 0x30_0000..0x30_c000, 0x50_0000..0x51_1000, 0x70_1000..0x70_9000]);
        let members: Vec<usize> = groups.iter().map(|group| group.members.len()).collect();
        assert_eq!(members, [104, 30, 1, 1]);
        assert_eq!(small, [place(301, 0x60_0000, 0x6000)]);
        let edges: Vec<Range<usize>> =
            groups.iter().flat_map(|group| &group.edges).map(|edge| edge.stretch.clone()).collect();
        assert_eq!(edges, [0..0x800, 0x8800..0x9000], "of the last one, whose first and last page are others' too");
    }

    #[test]
    fn what_was_written_is_suspected_of_every_mirror_that_has_it() {
        let (mut groups, _) = super::groups(scattered(), is_mapped);
        let asked = std::cell::Cell::new(0);
        let written = [0x10_3000..0x10_5000, 0x16_7000..0x16_8000, 0x30_0000..0x30_1000, 0x70_1000..0x70_2000];
        let first = |pages: Range<u64>| Ok::<_, ()>(vec![pages]);
        let later = |pages: Range<u64>| {
            asked.set(asked.get() + 1);
            let inside = written.iter().map(|part| part.start.max(pages.start)..part.end.min(pages.end));
            Ok::<_, ()>(inside.filter(|part| part.start < part.end).collect())
        };
        for group in &mut groups {
            let all: usize = group.members.iter().map(|member| member.stretch.len()).sum();
            let found = group.suspects(first).expect("known");
            assert_eq!(found.iter().map(|place| place.stretch.len()).sum::<usize>(), all, "at first nothing is known");
        }
        let found: Vec<Place> = groups.iter_mut().flat_map(|group| group.suspects(later).expect("known")).collect();
        assert_eq!(asked.get(), groups.len());
        let stretches: Vec<(u64, Range<usize>)> =
            found.iter().map(|place| (place.mirror, place.stretch.clone())).collect();
        assert_eq!(
            stretches,
            [
                (3, 0..0x1000),
                (4, 0..0x1000),
                (103, 0..0x1000),
                (200, 0..0x500),
                (201, 0..0x500),
                (202, 0..0x400),
                (302, 0..0x800),
                (302, 0x8800..0x9000),
                (302, 0x800..0x1800),
            ]
        );
        assert!(groups.iter_mut().all(|group| group.suspects(|_| Err(())).is_none()));
    }
}
