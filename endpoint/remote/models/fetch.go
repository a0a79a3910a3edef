package models

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/intercept"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// fetchedAtLeast is the minimum number of bytes that the server of a reference must send within the stall timeout.
const fetchedAtLeast = 64 << 10

// errSilent reports that the server of a reference stopped sending.
var errSilent = fmt.Errorf("the server of the url does not send data: %w", context.DeadlineExceeded)

// checkPrefix validates a URL prefix for fetching. The prefix must include the end of the host name, otherwise
// example.com would also match example.com.evil.org.
func checkPrefix(prefix string) error {
	u, err := url.Parse(prefix)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not the beginning of an http or https URL", prefix)
	}
	if !strings.HasSuffix(u.Path, "/") {
		return fmt.Errorf("%q has to end with a slash", prefix)
	}
	return nil
}

// newFetcher returns the HTTP client for references. It ignores proxies of the environment, and follows only redirects
// that match the allowed prefixes.
func newFetcher(allowed []string, stall time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: stall}
	transport := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: stall, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, DisableCompression: true,
	}
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > 5 {
			return errors.New("too many redirections")
		}
		return checkURL(r.URL, allowed)
	}}
}

// checkURL returns an error unless a prefix matches u. It refuses paths with dot segments because servers may resolve
// them to other paths.
func checkURL(u *url.URL, allowed []string) error {
	if len(allowed) == 0 {
		return fmt.Errorf("%w: fetching is disabled: start the gateway with --fetch", ErrRefused)
	}
	clean := u.User == nil && !slices.Contains(strings.Split(u.Path, "/"), "..")
	for _, prefix := range allowed {
		p, err := url.Parse(prefix)
		if err == nil && clean && u.Scheme == p.Scheme && u.Host == p.Host && strings.HasPrefix(u.Path, p.Path) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s does not match a URL prefix of --fetch", ErrRefused, u.Redacted())
}

// fetch requests a URL. The caller closes the body.
func (c *Component) fetch(ctx context.Context, text string) (*http.Response, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParams, err)
	}
	if err := checkURL(u, c.Fetch); err != nil {
		return nil, err
	}
	var response *http.Response
	body, err := modelwire.Open(ctx, modelwire.BodyOptions{Stall: c.env.Stall, Least: fetchedAtLeast, Silent: errSilent}, func(ctx context.Context) (io.ReadCloser, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrParams, err)
		}
		if trace, ok := intercept.TraceFrom(ctx); ok {
			request.Header.Set(intercept.TraceParent, trace.String())
			if trace.State != "" {
				request.Header.Set(intercept.TraceState, trace.State)
			}
		}
		if response, err = c.fetcher.Do(request); err != nil {
			return nil, err
		}
		return response.Body, nil
	})
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	response.Body = body
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("fetch %s: %s", u.Redacted(), response.Status), response.Body.Close())
	}
	return response, nil
}

// wantedDigest parses a SHA-256 in hexadecimal. References require one so that a change of the content is detected.
func wantedDigest(text string) ([]byte, error) {
	digest, err := hex.DecodeString(text)
	if err != nil || len(digest) != sha256.Size {
		return nil, fmt.Errorf("%w: a url requires its sha256 in hexadecimal", ErrParams)
	}
	return digest, nil
}

// FetchTensor fetches a tensor of size bytes into memory of the pool and verifies its SHA-256, which is in hexadecimal. The
// caller closes the result.
func (c *Component) FetchTensor(ctx context.Context, url string, dtype tensor.DType, shape tensor.Shape, size int64, sha string) (out *admission.Held[*tensor.Tensor], err error) {
	want, err := wantedDigest(sha)
	if err != nil {
		return nil, err
	}
	if size > int64(c.MaxModel) {
		return nil, fmt.Errorf("%w: a tensor of %d bytes", ErrTooLarge, size)
	}
	response, err := c.fetch(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.ContentLength != size {
		return nil, fmt.Errorf("%w: the tensor has %d bytes, and the url %d", ErrParams, size, response.ContentLength)
	}
	t, err := tensor.Empty(c.uploads, dtype, shape) // FillFrom writes all bytes
	if err != nil {
		return nil, err
	}
	charge := c.arriving.Open(rights.Sender(ctx))
	out = admission.Hold(t, charge)
	digest := sha256.New()
	if err = t.FillFrom(io.TeeReader(charge.Reader(response.Body), digest)); err != nil {
		err = fmt.Errorf("fetch: %w", err)
	} else if got := digest.Sum(nil); !slices.Equal(got, want) {
		err = fmt.Errorf("%w: the content of the url has SHA-256 %s", ErrParams, hex.EncodeToString(got))
	}
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

// publishURL fetches a file and publishes it.
func (c *Component) publishURL(ctx context.Context, p *PublishParams) (out Published, err error) {
	want, err := wantedDigest(p.SHA256)
	if err != nil {
		return out, err
	}
	response, err := c.fetch(ctx, p.URL)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch n := response.ContentLength; {
	case n < 0:
		return out, fmt.Errorf("%w: the server of the url sent no Content-Length", ErrParams)
	case n > int64(c.MaxModel):
		return out, fmt.Errorf("%w: a model of %d bytes", ErrTooLarge, n)
	}
	charge := c.arriving.Open(rights.Sender(ctx))
	defer charge.Close()
	verified := newVerifier(response.Body, announced{"the request", "sha-256", want})
	return c.publishStream(ctx, p.Name, charge.Reader(verified), response.ContentLength, verified.check, p.URL, conditions{})
}
