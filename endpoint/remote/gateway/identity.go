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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// Identity is the sender of a request.
type Identity = rights.Identity

// IdentityFrom returns the sender of the request of ctx.
func IdentityFrom(ctx context.Context) Identity { return rights.IdentityFrom(ctx) }

// identities authenticates the clients of the gateway.
type identities struct {
	tokens       *tokenFile                // nil if tokens are not configured
	certificates *certificateFile          // nil without TLS
	clientCA     *reloaded[*x509.CertPool] // nil if client certificates are not requested
	firstCA      *x509.CertPool            // the authorities at the start
	policy       *reloaded[*rights.Policy] // nil if identities have all rights
	insecure     bool                      // admit all clients if neither tokens nor certificates are required
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
		if ids.clientCA, err = newReloaded("client-ca", log, func() (*x509.CertPool, error) { return readAuthorities(c.ClientCA) }, c.ClientCA); err != nil {
			errs = append(errs, fmt.Errorf("--client-ca: %w", err))
		} else {
			ids.firstCA = ids.clientCA.get()
		}
	}
	if c.Policy != "" {
		if ids.policy, err = newReloaded("policy", log, func() (*rights.Policy, error) { return rights.Read(c.Policy) }, c.Policy); err != nil {
			errs = append(errs, fmt.Errorf("--policy: %w", err))
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

// identify returns the sender of a request with its rights, from its Authorization header, its TLS state (nil without
// TLS) and the remote address of its connection.
func (ids *identities) identify(authorization string, state *tls.ConnectionState, remote net.Addr) (Identity, error) {
	id, err := ids.authenticate(authorization, state, remote)
	if err != nil || ids.policy == nil {
		return id, err
	}
	return ids.policy.get().Apply(id)
}

func (ids *identities) authenticate(authorization string, state *tls.ConnectionState, remote net.Addr) (Identity, error) {
	if ids.open() {
		if ids.byUser() {
			if err := admission.CheckUser(remote); err != nil {
				return Identity{}, err
			}
		}
		return Identity{Method: rights.MethodNone}, nil
	}
	if ids.tokens != nil && authorization != "" {
		if id, ok := ids.tokens.find(presentedToken(authorization)); ok {
			return id, nil
		}
		return Identity{}, rights.ErrUnauthenticated
	}
	if ids.clientCA != nil && state != nil && len(state.VerifiedChains) > 0 {
		leaf := state.VerifiedChains[0][0]
		id := rights.OfCertificate(leaf)
		// A connection may outlive its certificate.
		if now := time.Now(); now.After(leaf.NotAfter) {
			return Identity{}, fmt.Errorf("%w: the certificate of %s expired at %v", rights.ErrUnauthenticated, id.Name, leaf.NotAfter)
		}
		// The handshake has verified the certificate, but the authorities may have changed since.
		if current := ids.clientCA.get(); current != ids.firstCA {
			if _, err := leaf.Verify(verifyOptions(current, state)); err != nil {
				return Identity{}, fmt.Errorf("%w: the certificate of %s: %w", rights.ErrUnauthenticated, id.Name, err)
			}
		}
		return id, nil
	}
	return Identity{}, rights.ErrUnauthenticated
}

// validity returns a function that reports whether the sender of a call is still accepted. It returns nil if the
// identity cannot be revoked.
func (g *Gateway) validity(id Identity, authorization string, state *tls.ConnectionState) func() bool {
	if !id.Known() || id.Method == rights.MethodNone {
		return nil
	}
	return func() bool {
		now, err := g.ids.identify(authorization, state, nil)
		return err == nil && now.Same(id)
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

// verifyOptions returns the options to verify a client certificate with the intermediates that the client sent.
func verifyOptions(roots *x509.CertPool, state *tls.ConnectionState) x509.VerifyOptions {
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	return opts
}

// tlsConfig returns the configuration of the listeners, or nil without TLS. Client certificates are optional in the
// handshake and required by identify, so that probes without one can check health. protocols are those of ALPN.
func (ids *identities) tlsConfig(protocols ...string) *tls.Config {
	if ids.certificates == nil {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, GetCertificate: ids.certificates.get}
	if ids.clientCA != nil {
		config.ClientAuth = tls.VerifyClientCertIfGiven
		base := config.Clone()
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			current := base.Clone()
			current.ClientCAs = ids.clientCA.get()
			return current, nil
		}
		config.ClientCAs = ids.clientCA.get()
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
