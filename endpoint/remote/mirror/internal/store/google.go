package store

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// Google's storage, and the right to read it.
const (
	googleEndpoint = "https://storage.googleapis.com"
	googleScope    = "https://www.googleapis.com/auth/devstorage.read_only"
)

// openGoogle opens a bucket of Google Cloud Storage by its S3-compatible interface. Requests carry a token of the
// application default credentials. Without these, they can read public objects only.
func openGoogle(rest string, o Options) (Place, error) {
	b, err := parseBucket("gs", rest)
	if err != nil {
		return nil, err
	}
	text := googleEndpoint
	if emulator := os.Getenv("STORAGE_EMULATOR_HOST"); emulator != "" {
		if text = emulator; !strings.Contains(text, "://") {
			text = "http://" + text
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("STORAGE_EMULATOR_HOST %q is not https://HOST", text)
	}
	client := NewHTTPClient(o.TLS, o.Connections, nil)
	b.transport, _ = client.Transport.(*http.Transport)
	b.options = minio.Options{
		Creds:  credentials.NewStaticV4("", "", ""),
		Secure: u.Scheme == "https", Region: "auto", BucketLookup: minio.BucketLookupPath, MaxRetries: 1, // the caller retries
		Transport: &googleTransport{next: b.transport, scheme: u.Scheme, host: u.Host, client: client, explicit: text != googleEndpoint},
	}
	b.endpoint = u.Host
	return b, b.connect("auto")
}

// googleTransport adds a token to requests to one host.
type googleTransport struct {
	next         http.RoundTripper
	scheme, host string
	client       *http.Client // requests tokens
	explicit     bool         // only credentials that the environment names are used

	once   sync.Once
	tokens oauth2.TokenSource // nil without credentials
	err    error
}

// RoundTrip implements http.RoundTripper.
func (g *googleTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != g.host || r.URL.Scheme != g.scheme {
		return g.next.RoundTrip(r)
	}
	if g.once.Do(g.find); g.err != nil {
		return nil, g.err
	}
	if g.tokens == nil {
		return g.next.RoundTrip(r)
	}
	token, err := g.tokens.Token()
	if err != nil {
		return nil, fmt.Errorf("%w: the token of Google's credentials: %w", ErrDenied, err)
	}
	r = r.Clone(r.Context())
	token.SetAuthHeader(r)
	return g.next.RoundTrip(r)
}

// find finds the application default credentials. Their absence is no error.
func (g *googleTransport) find() {
	named := os.Getenv("GOOGLE_APPLICATION_CREDENTIALS") != ""
	if g.explicit && !named {
		return
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, g.client)
	found, err := google.FindDefaultCredentials(ctx, googleScope)
	switch {
	case err == nil:
		g.tokens = found.TokenSource
	case named:
		g.err = fmt.Errorf("%w: GOOGLE_APPLICATION_CREDENTIALS: %w", ErrDenied, err)
	}
}

// parseBucket parses BUCKET/KEY.
func parseBucket(scheme, rest string) (*bucket, error) {
	name, key, _ := strings.Cut(rest, "/")
	if key = strings.Trim(key, "/"); name == "" || key == "" {
		return nil, fmt.Errorf("the source %s://%s is not %s://BUCKET/KEY", scheme, cmp.Or(rest, ""), scheme)
	}
	return &bucket{scheme: scheme, bucket: name, key: key}, nil
}
