// Package rights decides who may do what at a gateway. It holds the identities of senders, the rights that a policy gives
// them, and the scopes of NATS. Other packages check rights with [Identity.Allow] and its siblings.
package rights

import (
	"context"
	"errors"
)

// Errors of requests that the sender may not make.
var (
	// ErrUnauthenticated reports a request without an accepted token or certificate.
	ErrUnauthenticated = errors.New("no token or client certificate that this gateway accepts")
	// ErrReadOnly reports a request for a change by a read-only sender or at a read-only gateway.
	ErrReadOnly = errors.New("read-only: changes are refused")
	// ErrRight reports a request whose sender lacks a right that the policy of the gateway requires.
	ErrRight = errors.New("not allowed by the gateway's policy")
)

// Methods of authentication.
const (
	// MethodNone means that the gateway requires no identity.
	MethodNone = "none"
	// MethodToken means that the request has an accepted token.
	MethodToken = "token"
	// MethodCertificate means that the connection has an accepted client certificate.
	MethodCertificate = "certificate"
)

// Identity is the sender of a request.
type Identity struct {
	// Name is the name of the token in the token file, or of the client certificate: its SPIFFE ID, its common name, or its first
	// other name. It may be empty.
	Name string
	// Also contains the further names of a client certificate, one on each line. Rules of a policy match them too.
	Also string
	// Method is one of the Method constants, or empty for an unknown client.
	Method string
	// ReadOnly means that the sender may not change the owner or the store.
	ReadOnly bool
	// ID distinguishes tokens without a name. It reveals nothing about the token.
	ID string
	// Rights are the rights that the policy of the gateway gives. nil means all rights.
	Rights *Set
}

// Known reports whether the gateway accepts the sender. Unknown clients may only call health checks.
func (id Identity) Known() bool { return id.Method != "" }

// Key returns a string that is unique to the identity. Tokens with the same name are one identity, so that a token can be
// replaced.
func (id Identity) Key() string {
	if id.Name != "" {
		return id.Method + "\x00" + id.Name
	}
	return id.Method + "\x00\x00" + id.ID
}

type identityKey struct{}

// WithIdentity returns a context that carries the sender of a request.
func WithIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// Sender returns the sender of the request. Without an identity in ctx, as in servers outside of a gateway, it returns
// an identity with MethodNone.
func Sender(ctx context.Context) Identity {
	id := IdentityFrom(ctx)
	if !id.Known() {
		id.Method = MethodNone
	}
	return id
}

// IdentityFrom returns the sender of the request, or the zero Identity if there is none.
func IdentityFrom(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
