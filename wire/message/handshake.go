package message

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// Agreement is the common part of two hellos.
type Agreement struct {
	// Peer is the peer's hello.
	Peer Hello
	// Protocol is the version that both sides use.
	Protocol uint32
	// Features holds the features of both sides, sorted.
	Features []string
}

// Has reports whether both sides have the feature.
func (a *Agreement) Has(feature string) bool { return slices.Contains(a.Features, feature) }

// ClientHandshake sends mine and waits for the server's hello. Zero Protocol and Oldest mean those of this package. If
// the server refuses, the error is its *[Error]; after a goodbye it has [CodeUnavailable]. The caller closes c on an
// error.
func ClientHandshake(c *wire.Conn, mine Hello) (*Agreement, error) {
	mine = mine.withDefaults()
	if err := sendHello(c, mine); err != nil {
		return nil, err
	}
	theirs, err := receiveHello(c)
	if errors.Is(err, errGoodbye) {
		err = &Error{Code: CodeUnavailable, Type: "unavailable", Message: "the server is stopping"}
	}
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	a, err := agree(mine, theirs)
	if err == nil && a.Has(FeatureRing) {
		ring.Allow(c, false)
	}
	return a, err
}

// ServerHandshake waits for the client's hello and answers with mine. Zero Protocol and Oldest mean those of this
// package. A client that sends another first frame, or has no common version, receives an error. check, if not nil, may
// refuse the client: its error is sent unchanged if it is an *[Error], otherwise as [CodePermissionDenied]. The caller
// closes c on an error.
func ServerHandshake(c *wire.Conn, mine Hello, check func(*Hello) error) (*Agreement, error) {
	mine = mine.withDefaults()
	theirs, err := receiveHello(c)
	if err != nil {
		if errors.Is(err, wire.ErrProtocol) || errors.Is(err, ErrEncoding) {
			refuse(c, CodeProtocol, err)
		}
		return nil, fmt.Errorf("handshake: %w", err)
	}
	a, err := agree(mine, theirs)
	if err != nil {
		refuse(c, CodeProtocol, err)
		return nil, err
	}
	if check != nil {
		if err := check(&theirs); err != nil {
			refuse(c, CodePermissionDenied, err)
			return nil, fmt.Errorf("handshake: %w", err)
		}
	}
	if a.Has(FeatureRing) {
		ring.Allow(c, true)
	}
	return a, sendHello(c, mine)
}

func (h Hello) withDefaults() Hello {
	if h.Protocol == 0 {
		h.Protocol = Protocol
	}
	if h.Oldest == 0 {
		h.Oldest = min(OldestProtocol, h.Protocol)
	}
	h.Features = slices.Clone(h.Features)
	slices.Sort(h.Features)
	return h
}

// agree returns the common part of two hellos, or an error if there is none.
func agree(mine, theirs Hello) (*Agreement, error) {
	version := min(mine.Protocol, theirs.Protocol)
	if version < max(mine.Oldest, theirs.Oldest) {
		return nil, fmt.Errorf("handshake: %w: this side speaks versions %d to %d, the peer %d to %d",
			wire.ErrProtocol, mine.Oldest, mine.Protocol, theirs.Oldest, theirs.Protocol)
	}
	a := &Agreement{Peer: theirs, Protocol: version}
	for _, f := range mine.Features {
		if slices.Contains(theirs.Features, f) {
			a.Features = append(a.Features, f)
		}
	}
	return a, nil
}

func sendHello(c *wire.Conn, h Hello) error {
	body, err := MarshalShown(h) // labels and names of devices
	if err != nil {
		return err
	}
	return c.Send(wire.KindHello, 0, body)
}

// errGoodbye means that the peer left without a hello. A stopping server may do that.
var errGoodbye = fmt.Errorf("%w: goodbye before the hello", wire.ErrProtocol)

// receiveHello waits for the first frame within the handshake timeout.
func receiveHello(c *wire.Conn) (Hello, error) {
	if c.Limits().HandshakeTimeout > 0 {
		if err := c.SetReadDeadline(time.Now().Add(c.Limits().HandshakeTimeout)); err != nil {
			return Hello{}, err
		}
	}
	f, err := c.ReceiveFirst()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return Hello{}, fmt.Errorf("no hello within %v: %w", c.Limits().HandshakeTimeout, wire.ErrTimeout)
	}
	if err != nil {
		return Hello{}, err
	}
	if f.Release != nil {
		defer f.Release() // no large part of it is kept
	}
	switch {
	case f.Kind == wire.KindError:
		e := new(Error)
		if err := Unmarshal(f.Body, e); err != nil {
			return Hello{}, err
		}
		return Hello{}, e
	case f.Kind == wire.KindGoodbye:
		return Hello{}, errGoodbye
	case f.Kind != wire.KindHello || f.ID != 0:
		return Hello{}, fmt.Errorf("%w: the peer is no owner (a keeper's socket ends with .keep): its first frame is a %s of %d, not a hello",
			wire.ErrProtocol, f.Kind, f.ID)
	}
	var h Hello
	if err := Unmarshal(f.Body, &h); err != nil {
		return Hello{}, err
	}
	if h.Protocol == 0 || h.Oldest == 0 || h.Oldest > h.Protocol {
		return Hello{}, fmt.Errorf("%w: hello with versions %d to %d", wire.ErrProtocol, h.Oldest, h.Protocol)
	}
	return h, c.SetReadDeadline(time.Time{})
}

// refuse sends the reason for the end of the connection.
func refuse(c *wire.Conn, code Code, err error) {
	e := &Error{Code: code, Type: standard.classType(code), Message: CutText(err.Error(), MaxErrorMessage)}
	var given *Error
	if errors.As(err, &given) {
		e = given
	}
	if body, err := MarshalShown(e); err == nil {
		_ = c.Send(wire.KindError, 0, body) // best effort: the handshake has failed already
	}
}
