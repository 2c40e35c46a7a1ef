//! Several resources are sealed as one.

use std::future::{Future, pending, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use palisade_core::{Seal, SealError, Token};

#[derive(Clone, Copy)]
enum Door {
    Shuts(&'static str),
    Jams(&'static str),
    NeverAnswers,
}

impl Seal for Door {
    type Sealed = (&'static str, Token);

    fn seal(&self, token: Token) -> impl Future<Output = Result<(&'static str, Token), SealError>> + Send {
        let door = *self;
        async move {
            match door {
                Door::Shuts(name) => ready(Ok((name, token))).await,
                Door::NeverAnswers => pending().await,
                Door::Jams(name) => Err(SealError {
                    resource: name.to_owned(),
                    superseded_by: None,
                    is_retryable: true,
                    source: "it jams".into(),
                }),
            }
        }
    }
}

fn token() -> Token {
    Token::new(34).expect("a token")
}

fn polled<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn all_are_sealed_with_the_same_token_and_handed_out_in_their_order() {
    let (a, b) = (Door::Shuts("a"), Door::Shuts("b"));
    let Poll::Ready(Ok(sealed)) = polled((&a, &b, vec![a, b]).seal(token())) else { panic!("all can be sealed") };
    assert_eq!(sealed, (("a", token()), ("b", token()), vec![("a", token()), ("b", token())]));
    assert!(matches!(polled(Vec::<Door>::new().seal(token())), Poll::Ready(Ok(none)) if none.is_empty()));
}

#[test]
fn one_that_fails_is_named_though_another_never_answers() {
    let name = |polled: Poll<Result<(), SealError>>| match polled {
        Poll::Ready(Err(error)) => error.resource,
        other => panic!("{other:?}"),
    };
    let (silent, jammed) = (Door::NeverAnswers, Door::Jams("b"));
    assert_eq!(name(polled((silent, jammed).seal(token())).map_ok(|_| ())), "b");
    assert_eq!(name(polled((jammed, silent).seal(token())).map_ok(|_| ())), "b");
    assert_eq!(name(polled(vec![silent, jammed, silent].seal(token())).map_ok(|_| ())), "b");
}

#[test]
fn nothing_is_handed_out_before_all_are_sealed() {
    let (sealed, silent) = (Door::Shuts("a"), Door::NeverAnswers);
    assert!(polled((sealed, silent).seal(token())).is_pending());
    assert!(polled(vec![silent, sealed].seal(token())).is_pending());
}
