package rights_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// A certificate is named by its SPIFFE ID, its common name or another name, and rules match each of its names.
func TestCertificatesHaveNames(t *testing.T) {
	t.Parallel()
	uri := func(text string) *url.URL {
		u, err := url.Parse(text)
		require.NoError(t, err)
		return u
	}
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte("rules:\n  - {certificates: [\"spiffe://train.local/ns/a/*\", \"*.workers.local\", alice, \"bob@train.local\"], call: [f]}\n"), 0o600))
	policy, err := rights.Read(path)
	require.NoError(t, err)
	spiffe, dns := uri("spiffe://train.local/ns/a/sa/worker"), []string{"w1.workers.local"}
	for _, row := range []struct {
		leaf    x509.Certificate
		name    string
		matches bool
	}{
		{x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}, "alice", true},
		{x509.Certificate{Subject: pkix.Name{CommonName: "eve"}}, "eve", false},
		{x509.Certificate{URIs: []*url.URL{spiffe}}, spiffe.String(), true},
		{x509.Certificate{URIs: []*url.URL{uri("spiffe://train.local/ns/b/sa/worker")}}, "spiffe://train.local/ns/b/sa/worker", false},
		{x509.Certificate{Subject: pkix.Name{CommonName: "pod"}, URIs: []*url.URL{spiffe}}, spiffe.String(), true},
		{x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, URIs: []*url.URL{uri("https://x.local/")}}, "alice", true},
		{x509.Certificate{DNSNames: dns}, dns[0], true},
		{x509.Certificate{Subject: pkix.Name{CommonName: "pod"}, DNSNames: dns}, "pod", true},
		{x509.Certificate{Subject: pkix.Name{CommonName: "pod"}, DNSNames: []string{"w1.other.local"}}, "pod", false},
		{x509.Certificate{EmailAddresses: []string{"bob@train.local"}}, "bob@train.local", true},
		{x509.Certificate{Subject: pkix.Name{CommonName: "eve\nalice"}}, "", false},
		{x509.Certificate{}, "", false},
	} {
		id := rights.OfCertificate(&row.leaf)
		require.Equal(t, row.name, id.Name)
		require.Equal(t, rights.MethodCertificate, id.Method)
		applied, err := policy.Apply(id)
		require.Equal(t, row.matches, err == nil && applied.May(access.Call, "f"), "%v", id)
	}
}
