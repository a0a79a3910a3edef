package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// Identity is the sender of a request.
type Identity = admission.Identity

// IdentityFrom returns the sender of the request of ctx.
func IdentityFrom(ctx context.Context) Identity { return admission.IdentityFrom(ctx) }

// CheckWrite returns nil if the sender of the request may change the owner and the store, otherwise admission.ErrReadOnly.
func (e *Env) CheckWrite(ctx context.Context) error {
	if e.ReadOnly {
		return fmt.Errorf("%w: the gateway runs with --read-only", admission.ErrReadOnly)
	}
	if id := IdentityFrom(ctx); id.ReadOnly {
		return fmt.Errorf("%w: the token of %s is a read-only one", admission.ErrReadOnly, orString(id.Name, "this request"))
	}
	return nil
}

// identities authenticates the clients of the gateway.
type identities struct {
	tokens       *tokenFile       // nil if tokens are not configured
	certificates *certificateFile // nil without TLS
	clientCA     *x509.CertPool   // nil if client certificates are not requested
	insecure     bool             // admit all clients if neither tokens nor certificates are required
}

func newIdentities(c *Config, log *slog.Logger) (*identities, error) {
	ids := identities{insecure: c.Insecure}
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

// open reports whether requests need neither a token nor a certificate.
func (ids *identities) open() bool { return ids.tokens == nil && ids.clientCA == nil }

// byUser reports whether connections are admitted by their user.
func (ids *identities) byUser() bool { return ids.open() && !ids.insecure }

// access describes the admitted clients, for the log and the page.
func (ids *identities) access() string {
	switch {
	case ids.byUser():
		return fmt.Sprintf("processes of uid %d on this host", os.Geteuid())
	case ids.open():
		return "everybody who reaches it"
	}
	return "clients with a token or certificate"
}

// identify returns the sender of a request, from its Authorization header, its TLS state (nil without TLS) and the
// remote address of its connection.
func (ids *identities) identify(authorization string, state *tls.ConnectionState, remote net.Addr) (Identity, error) {
	if ids.open() {
		if ids.byUser() {
			if err := admission.CheckUser(remote); err != nil {
				return Identity{}, err
			}
		}
		return Identity{Method: admission.MethodNone}, nil
	}
	if ids.tokens != nil && authorization != "" {
		if id, ok := ids.tokens.find(presentedToken(authorization)); ok {
			return id, nil
		}
		return Identity{}, admission.ErrUnauthenticated
	}
	if ids.clientCA != nil && state != nil && len(state.VerifiedChains) > 0 {
		leaf := state.VerifiedChains[0][0]
		// A connection may outlive its certificate.
		if now := time.Now(); now.After(leaf.NotAfter) {
			return Identity{}, fmt.Errorf("%w: the certificate of %s expired at %v", admission.ErrUnauthenticated, leaf.Subject.CommonName, leaf.NotAfter)
		}
		return Identity{Name: leaf.Subject.CommonName, Method: admission.MethodCertificate}, nil
	}
	return Identity{}, admission.ErrUnauthenticated
}

// validity returns a function that reports whether the sender of a call is still accepted. It returns nil if the
// identity cannot be revoked.
func (g *Gateway) validity(id Identity, authorization string, state *tls.ConnectionState) func() bool {
	if !id.Known() || id.Method == admission.MethodNone {
		return nil
	}
	return func() bool {
		now, err := g.ids.identify(authorization, state, nil)
		return err == nil && now == id
	}
}

// presentedToken returns the token of an Authorization header: a bearer token, or the password of basic authentication,
// which browsers support.
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

// allowNATS reports whether a client of the embedded NATS server may connect. Clients can publish, so a read-only token
// is not sufficient.
func (ids *identities) allowNATS(token string, state *tls.ConnectionState, remote, local net.Addr) bool {
	if ids.byUser() {
		remote = admission.WithTCPUser(remote, local)
	}
	authorization := ""
	if token != "" {
		authorization = "Bearer " + token
	}
	id, err := ids.identify(authorization, state, remote)
	return err == nil && !id.ReadOnly
}

// tlsConfig returns the configuration of the listeners, or nil without TLS. Client certificates are optional in the
// handshake and required by identify, so that probes without one can check health.
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
