package message

import (
	"fmt"
	"time"
)

// FeatureOffer is the feature of servers that take offers of endpoints ([OpOffer]), and of clients that know them.
const FeatureOffer = "offer"

// Offer offers endpoints whose functions the client runs: calls of them come as an [OfferEvent] each, with the
// request's ID, until [OpUnwatch]. All of them are offered, or none.
type Offer struct {
	// Endpoints describe them. Of each the name, what it is (task, managed, stream, cache, single flight, serialized,
	// timeout) and the texts for people count; the other keys are ignored.
	Endpoints []EndpointInfo `cbor:"1,keyasint"`
	// Calls is how many calls the client takes at once; 0 for as many as the server allows.
	Calls uint64 `cbor:"2,keyasint,omitempty"`
}

// Offering answers [OpOffer]. Events follow.
type Offering struct {
	// Calls is how many calls come at once at most: not more than was asked for.
	Calls uint64 `cbor:"1,keyasint"`
}

// OfferEventKind says what a client that offers endpoints is told.
type OfferEventKind uint8

const (
	// OfferCall is a call, which the client answers with [OpAnswer].
	OfferCall OfferEventKind = 1
	// OfferCancel tells that nobody waits for the answer to a call any more. It is answered all the same.
	OfferCancel OfferEventKind = 2
)

// OfferEvent is the body of an event frame with the ID of the offer's request, whose descriptors Handles name.
type OfferEvent struct {
	// Kind is what it tells.
	Kind OfferEventKind `cbor:"1,keyasint"`
	// Call is the number of the call, new on the connection.
	Call uint64 `cbor:"2,keyasint"`
	// Endpoint is the name of the endpoint, of a call.
	Endpoint string `cbor:"3,keyasint,omitempty"`
	// Args are the arguments, as in [Call].
	Args RawMessage `cbor:"4,keyasint,omitempty"`
	// Handles are the storages that the arguments refer to. Each has a name, by which a result that lies in the same
	// memory says so.
	Handles []Handle `cbor:"5,keyasint,omitempty"`
	// Timeout is how long the caller waits, in nanoseconds; 0 for as long as it takes.
	Timeout time.Duration `cbor:"6,keyasint,omitempty"`
	// Reason says why nobody waits any more, for people.
	Reason string `cbor:"7,keyasint,omitempty"`
}

// Answer answers a call of an [OfferEvent]: the body of [OpAnswer]. Its frame carries the descriptors that Handles
// name. A stream has one with More for each of its results and one without, and without a value, at its end.
type Answer struct {
	// Call is the number of the call.
	Call uint64 `cbor:"1,keyasint"`
	// Value is the result: one CBOR item, in which [TagTensor] and [TagStateDict] may stand.
	Value RawMessage `cbor:"2,keyasint,omitempty"`
	// Handles are the storages that the result refers to.
	Handles []Handle `cbor:"3,keyasint,omitempty"`
	// Error is why there is no result; nil where there is one.
	Error *Error `cbor:"4,keyasint,omitempty"`
	// More tells that another answer follows: of a stream.
	More bool `cbor:"5,keyasint,omitempty"`
}

// Answered answers [OpAnswer]: the result was taken over. For a stream it comes when there is room for the next one.
type Answered struct{}

// ParseAnswer decodes the body of [OpAnswer]. Tags may stand in its value, which whoever decodes that looks at.
func ParseAnswer(data []byte) (Answer, error) {
	var a Answer
	err := unmarshalEnvelope(data, 2, &a)
	return a, err
}

// EachRef calls f with every tensor and state dict of a payload that is well-formed, with their tags. What stands
// inside of them is not looked at. Other tags are refused.
func EachRef(payload []byte, f func(tag uint64, item RawMessage) error) error {
	for rest := payload; len(rest) > 0; {
		major := rest[0] >> 5
		n, after, ok := readLength(rest)
		switch {
		case !ok:
			return fmt.Errorf("%w: the item ends too early", ErrEncoding)
		case major == cborTag && n != TagTensor && n != TagStateDict:
			return fmt.Errorf("%w: tag %d is not allowed here", ErrEncoding, n)
		case major == cborTag:
			item, behind, ok := cutItem(rest)
			if !ok {
				return fmt.Errorf("%w: the item ends too early", ErrEncoding)
			}
			if err := f(n, item); err != nil {
				return err
			}
			after = behind
		case major == cborBytes || major == cborText:
			if n > uint64(len(after)) {
				return fmt.Errorf("%w: the item ends too early", ErrEncoding)
			}
			after = after[n:]
		}
		rest = after
	}
	return nil
}
