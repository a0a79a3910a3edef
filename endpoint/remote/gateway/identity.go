package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
)

// Identity is who sent a request.
type Identity struct {
	// Name is the name beside the token, or the common name of the client certificate; empty for nobody in particular.
	Name string
	// Method is "token", "certificate" or "none".
	Method string
	// ReadOnly refuses what changes the owner or the store.
	ReadOnly bool
}

// Errors of requests that are refused for their sender.
var (
	// ErrUnauthenticated is a request without a token or certificate that the gateway accepts.
	ErrUnauthenticated = errors.New("no token or client certificate that this gateway accepts")
	// ErrReadOnly is a request that would change something, of a sender or at a gateway that may not.
	ErrReadOnly = errors.New("read-only: nothing can be changed here")
)

type identityKey struct{}

// IdentityFrom returns who sent the request of ctx.
func IdentityFrom(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}

// CheckWrite is nil where the sender of the request of ctx may change the owner and the store, and else ErrReadOnly.
func (e *Env) CheckWrite(ctx context.Context) error {
	if e.ReadOnly {
		return fmt.Errorf("%w: the gateway runs with --read-only", ErrReadOnly)
	}
	if id := IdentityFrom(ctx); id.ReadOnly {
		return fmt.Errorf("%w: the token of %s is a read-only one", ErrReadOnly, orString(id.Name, "this request"))
	}
	return nil
}

// identities decides who may use the gateway.
type identities struct {
	tokens       *tokenFile       // nil where there are none
	certificates *certificateFile // nil without TLS
	clientCA     *x509.CertPool   // nil where client certificates are not asked for
}

func newIdentities(c *Config, log *slog.Logger) (*identities, error) {
	var ids identities
	var errs []error
	var err error
	if c.TokenFile != "" {
		if ids.tokens, err = openTokenFile(c.TokenFile, log); err != nil {
			errs = append(errs, fmt.Errorf("--token-file: %w", err))
		}
	}
	if c.TLSCert != "" && c.TLSKey != "" {
		if ids.certificates, err = openCertificateFile(c.TLSCert, c.TLSKey, log); err != nil {
			errs = append(errs, fmt.Errorf("--tls-cert: %w", err))
		}
	}
	if c.ClientCA != "" {
		if ids.clientCA, err = readAuthorities(c.ClientCA); err != nil {
			errs = append(errs, fmt.Errorf("--client-ca: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &ids, nil
}

// open reports whether anybody who reaches a listener may use it.
func (ids *identities) open() bool { return ids.tokens == nil && ids.clientCA == nil }

// identify finds out who sent a request from its Authorization header and the state of its TLS connection, nil without.
func (ids *identities) identify(authorization string, state *tls.ConnectionState) (Identity, error) {
	if ids.open() {
		return Identity{Method: "none"}, nil
	}
	if ids.tokens != nil && authorization != "" {
		if id, ok := ids.tokens.find(presentedToken(authorization)); ok {
			return id, nil
		}
		return Identity{}, ErrUnauthenticated
	}
	if ids.clientCA != nil && state != nil && len(state.VerifiedChains) > 0 {
		leaf := state.VerifiedChains[0][0]
		// A connection may outlive the certificate that was good when it began.
		if now := time.Now(); now.After(leaf.NotAfter) {
			return Identity{}, fmt.Errorf("%w: the certificate of %s expired at %v", ErrUnauthenticated, leaf.Subject.CommonName, leaf.NotAfter)
		}
		return Identity{Name: leaf.Subject.CommonName, Method: "certificate"}, nil
	}
	return Identity{}, ErrUnauthenticated
}

// presentedToken is the token of a header: as a bearer's, or as the password of basic authentication, which is what
// browsers ask for.
func presentedToken(authorization string) string {
	scheme, rest, _ := strings.Cut(authorization, " ")
	rest = strings.TrimSpace(rest)
	switch strings.ToLower(scheme) {
	case "bearer":
		return rest
	case "basic":
		pair, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			return ""
		}
		_, password, _ := strings.Cut(string(pair), ":")
		return password
	}
	return ""
}

// allowNATS reports whether a client of the embedded NATS server may connect. It can publish, so a read-only token is
// not enough.
func (ids *identities) allowNATS(token string, state *tls.ConnectionState) bool {
	authorization := ""
	if token != "" {
		authorization = "Bearer " + token
	}
	id, err := ids.identify(authorization, state)
	return err == nil && !id.ReadOnly
}

// tlsConfig is the configuration of listeners; nil without TLS. A client certificate is verified where one is sent, and
// asked for by identify: health stays open to probes that have none.
func (ids *identities) tlsConfig() *tls.Config {
	if ids.certificates == nil {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: ids.certificates.get}
	if ids.clientCA != nil {
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, ids.clientCA
	}
	return config
}

func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return pool, nil
}
