//! Selects the share for a session.

use std::panic::resume_unwind;
use std::thread;

use remotegpu_client::connect::{
    ConnectError, Environment, ErrorKind, Hello, Patience, SessionTicket, Share, Wish, offload_hello,
    open_offload_session,
};

use crate::options::Options;

pub struct Found {
    pub index: usize,
    pub share: Share,
    pub hello: Hello,
    pub ticket: SessionTicket,
}

/// Opens the session on the first share that accepts it. The back ends of the wish are tried in order, each on all
/// shares.
///
/// # Errors
/// If no share accepts: the first error.
pub fn open(shares: &[Share], options: &Options) -> Result<(Found, Environment), ConnectError> {
    let asked = asked(shares, options.share)?;
    let (greeted, mut first_error) = greet(&asked);
    for wish in narrowed(&options.wish) {
        for (index, share, hello) in &greeted {
            if !hello.environments.iter().any(|environment| wish.may_be(environment)) {
                continue;
            }
            match open_offload_session(share, hello, &wish) {
                Ok((ticket, environment)) => {
                    let (share, hello) = ((*share).clone(), hello.clone());
                    return Ok((Found { index: *index, share, hello, ticket }, environment));
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
    }
    let there: Vec<_> =
        greeted.iter().map(|(_, share, hello)| (share.endpoint.as_str(), &*hello.environments)).collect();
    Err(first_error.unwrap_or_else(|| none_fits(&options.wish, &there)))
}

type Greeted<'a> = Vec<(usize, &'a Share, Hello)>;

/// Returns the shares that answer, and the first error of those that do not. With several shares, the function waits
/// for the pod's network only if none of them answers.
fn greet<'a>(asked: &[(usize, &'a Share)]) -> (Greeted<'a>, Option<ConnectError>) {
    if asked.len() > 1 {
        let (greeted, error) = greet_all(asked, Patience::Short);
        if !greeted.is_empty() || asked.iter().all(|(_, share)| share.claim.is_none()) {
            return (greeted, error);
        }
    }
    greet_all(asked, Patience::First)
}

/// Calls all shares at the same time.
fn greet_all<'a>(asked: &[(usize, &'a Share)], patience: Patience) -> (Greeted<'a>, Option<ConnectError>) {
    let answers: Vec<_> = thread::scope(|scope| {
        let asking: Vec<_> =
            asked.iter().map(|&(_, share)| scope.spawn(move || offload_hello(share, patience))).collect();
        asking.into_iter().map(|answer| answer.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut first_error = None;
    let greeted = asked.iter().zip(answers).filter_map(|(&(index, share), answer)| match answer {
        Ok(hello) => Some((index, share, hello)),
        Err(error) => {
            first_error.get_or_insert(error);
            None
        }
    });
    (greeted.collect(), first_error)
}

fn asked(shares: &[Share], only: Option<usize>) -> Result<Vec<(usize, &Share)>, ConnectError> {
    match only {
        None => Ok(shares.iter().enumerate().collect()),
        Some(index) => match shares.get(index) {
            Some(share) => Ok(vec![(index, share)]),
            None => {
                let message = format!("there is no share {index}: this process has {}, counted from 0", shares.len());
                Err(ConnectError::new(ErrorKind::Settings, message))
            }
        },
    }
}

/// Returns one wish for each back end, best first.
fn narrowed(wish: &Wish) -> Vec<Wish> {
    if wish.backends.is_empty() {
        return vec![wish.clone()];
    }
    let one = |backend: &String| Wish { backends: vec![backend.clone()], ..wish.clone() };
    wish.backends.iter().map(one).collect()
}

fn none_fits(wish: &Wish, there: &[(&str, &[Environment])]) -> ConnectError {
    let mut wanted = String::from("an environment");
    if !wish.environment.is_empty() {
        wanted += &format!(" named {}", wish.environment);
    }
    if !wish.backends.is_empty() {
        wanted += &format!(" with {}", wish.backends.join(" or "));
    }
    let offers = there.iter().map(|(endpoint, environments)| match environments {
        [] => format!("{endpoint} serves no offload (start it with --offload)"),
        _ => {
            let names = environments.iter().map(|one| format!("{} ({})", one.name, one.backend));
            format!("{endpoint} has {}", names.collect::<Vec<_>>().join(", "))
        }
    });
    let message = format!("no share has {wanted}: {}", offers.collect::<Vec<_>>().join("; "));
    ConnectError::new(ErrorKind::Settings, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str, backend: &str) -> Environment {
        let (name, backend, python) = (name.into(), backend.into(), "3.12.4".into());
        Environment { name, backend, python, packages: Default::default(), devices: Vec::new() }
    }

    #[test]
    fn each_back_end_is_a_wish_of_its_own_in_order() {
        let wish = Wish { backends: vec!["rocm".into(), "cpu".into()], environment: "e".into(), ..Wish::default() };
        let order: Vec<_> = narrowed(&wish).into_iter().map(|one| (one.backends, one.environment)).collect();
        assert_eq!(order, [(vec!["rocm".into()], "e".into()), (vec!["cpu".into()], "e".into())]);
        assert_eq!(narrowed(&Wish::default()), [Wish::default()]);
    }

    #[test]
    fn says_what_there_is_where_nothing_fits() {
        let wish = Wish { backends: vec!["rocm".into()], ..Wish::default() };
        let some = [environment("torch", "cpu"), environment("big", "cuda")];
        assert!(!some.iter().any(|one| wish.may_be(one)));
        let error = none_fits(&wish, &[("a:1", &some), ("b:2", &[])]);
        let expected = "no share has an environment with rocm: a:1 has torch (cpu), big (cuda); \
                        b:2 serves no offload (start it with --offload)";
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Settings, expected));
    }

    #[test]
    fn a_share_that_is_not_there_is_named() {
        let error = asked(&[], Some(3)).unwrap_err();
        assert!(error.message.contains("no share 3"), "{error}");
    }
}
