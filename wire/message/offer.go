package message

import (
	"fmt"
	"time"
)

// FeatureOffer is the feature of servers that accept offers of endpoints ([OpOffer]), and of clients that use them.
const FeatureOffer = "offer"

// Offer offers endpoints whose functions the client runs. Each call is an [OfferEvent] with the request's ID, until
// [OpUnwatch]. Either all endpoints are offered, or none.
type Offer struct {
	// Endpoints describes them. The name, the options (task, managed, stream, cache, single flight, serialized,
	// timeout) and the display texts are used; other keys are ignored.
	Endpoints []EndpointInfo `cbor:"1,keyasint"`
	// Calls is the maximum number of concurrent calls; 0 means the server's limit.
	Calls uint64 `cbor:"2,keyasint,omitempty"`
}

// Offering answers [OpOffer]. Events follow.
type Offering struct {
	// Calls is the maximum number of concurrent calls, at most the requested one.
	Calls uint64 `cbor:"1,keyasint"`
}

// OfferEventKind is the kind of an event for a client that offers endpoints.
type OfferEventKind uint8

const (
	// OfferCall is a call, which the client answers with [OpAnswer].
	OfferCall OfferEventKind = 1
	// OfferCancel means that the caller of a call has left. The client still answers the call.
	OfferCancel OfferEventKind = 2
)

// OfferEvent is the body of an event frame with the ID of the offer's request, whose descriptors Handles name.
type OfferEvent struct {
	// Kind is the kind of the event.
	Kind OfferEventKind `cbor:"1,keyasint"`
	// Call is the number of the call, new on the connection.
	Call uint64 `cbor:"2,keyasint"`
	// Endpoint is the endpoint of a call.
	Endpoint string `cbor:"3,keyasint,omitempty"`
	// Args are the arguments, as in [Call].
	Args RawMessage `cbor:"4,keyasint,omitempty"`
	// Handles are the storages that the arguments refer to. Each has a name, which a result in the same memory repeats.
	Handles []Handle `cbor:"5,keyasint,omitempty"`
	// Timeout is how long the caller waits, in nanoseconds; 0 means no limit.
	Timeout time.Duration `cbor:"6,keyasint,omitempty"`
	// Reason explains a cancellation, for display.
	Reason string `cbor:"7,keyasint,omitempty"`
}

// Answer answers a call of an [OfferEvent]: the body of [OpAnswer]. Its frame carries the descriptors that Handles
// name. A stream sends one with More for each result, and one without More and value at its end.
type Answer struct {
	// Call is the number of the call.
	Call uint64 `cbor:"1,keyasint"`
	// Value is the result: one CBOR item, which may contain [TagTensor] and [TagStateDict].
	Value RawMessage `cbor:"2,keyasint,omitempty"`
	// Handles are the storages that the result refers to.
	Handles []Handle `cbor:"3,keyasint,omitempty"`
	// Error is the reason for the missing result; nil if there is one.
	Error *Error `cbor:"4,keyasint,omitempty"`
	// More reports whether another answer of a stream follows.
	More bool `cbor:"5,keyasint,omitempty"`
}

// typeBusy is the type of the error with which a worker declines a call.
const typeBusy = "busy"

// Decline returns the error of a worker that declines a call for the given reason. The server may pass the call to
// another worker.
func Decline(reason string) *Error {
	return &Error{Code: CodeUnavailable, Type: typeBusy, Message: CutText(reason, MaxErrorMessage)}
}

// Declines reports whether e is an error of [Decline].
func (e *Error) Declines() bool { return e != nil && e.Code == CodeUnavailable && e.Type == typeBusy }

// Answered answers [OpAnswer]: the server owns the result. For a stream it is sent when there is room for the next
// result.
type Answered struct{}

// ParseAnswer decodes the body of [OpAnswer]. Its value may contain tags, which the decoder of the value checks.
func ParseAnswer(data []byte) (Answer, error) {
	var a Answer
	err := unmarshalEnvelope(data, 2, &a)
	return a, err
}

// EachRef calls f for every tensor and state dict of a well-formed payload, with their tags. Their content is not
// checked. Other tags are refused.
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
