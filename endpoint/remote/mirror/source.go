package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// source is a model at another host's gateway.
type source struct {
	base    *url.URL // URL of the gateway
	name    string
	version uint64 // 0 for the newest
	token   string
	client  *http.Client
	*attempts
}

// parseSource parses https://host:2537/NAME[@VERSION]. The text after the last @ is a version only if it is a number.
func parseSource(text string) (base *url.URL, name string, version uint64, err error) {
	u, err := url.Parse(text)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err // without the text, which may contain a password
		}
		return nil, "", 0, fmt.Errorf("invalid source URL: %w", err)
	}
	user := u.User
	u.User = nil // errors must not contain it
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, "", 0, fmt.Errorf("the source %q is not https://HOST:2537/NAME, file:///PATH, hf://ORG/MODEL, oci://HOST/REPOSITORY, s3://BUCKET/KEY or gs://BUCKET/KEY", u)
	}
	if user != nil {
		return nil, "", 0, fmt.Errorf("the source %q has a user in it: a token goes apart from it", u)
	}
	name = strings.Trim(u.Path, "/")
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		if n, err := strconv.ParseUint(name[at+1:], 10, 64); err == nil && n > 0 {
			name, version = name[:at], n
		}
	}
	if name == "" {
		return nil, "", 0, fmt.Errorf("the source %q names no model: use https://HOST:2537/NAME", text)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, name, version, nil
}

// sameHost follows redirects within the host only, because the token and the trust apply to that host.
func sameHost(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	if r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
		return fmt.Errorf("%w: redirect to %s", ErrSource, r.URL.Host)
	}
	if len(via) > 5 {
		return fmt.Errorf("%w: too many redirects", ErrSource)
	}
	return nil
}

// path returns the path of a version of the model; version 0 is the newest.
func (s *source) path(version uint64, rest string) string {
	return modelwire.VersionPath(s.name, version) + rest
}

// answer is a response with a watched body.
type answer struct {
	*http.Response
	*modelwire.Body
}

// Close ends the request. The rest of the body is not read.
func (a *answer) Close() error { return a.Body.Close() }

// do sends one request. The caller closes the answer.
func (s *source) do(ctx context.Context, method, path string, fields ...string) (*answer, error) {
	u, err := s.base.Parse(path)
	if err != nil {
		return nil, err
	}
	a := &answer{}
	a.Body, err = s.attempts.open(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
		if err != nil {
			return nil, err
		}
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		if s.token != "" {
			r.Header.Set("Authorization", "Bearer "+s.token)
		}
		if a.Response, err = s.client.Do(r); err != nil {
			return nil, err
		}
		return a.Response.Body, nil
	})
	if err != nil {
		return nil, err
	}
	if a.StatusCode < 200 || a.StatusCode > 299 {
		defer a.Close()
		return nil, store.Refusal(a.Response, a.Body)
	}
	return a, nil
}

// readAll reads an answer of at most limit bytes.
func (a *answer) readAll(limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(a.Body, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%w: an answer of more than %d bytes", ErrSource, limit)
	}
	return text, err
}

// object requests a small JSON object.
func (s *source) object(ctx context.Context, method, path string, out any) error {
	a, err := s.do(ctx, method, path)
	if err != nil {
		return err
	}
	defer a.Close()
	if a.StatusCode == http.StatusNoContent {
		return nil
	}
	text, err := a.readAll(64 << 10)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%w: %w", ErrSource, err)
	}
	return nil
}

// maxManifestBytes limits the size of a manifest.
const maxManifestBytes = 64 << 20

// manifest fetches and validates the manifest of a version with digests of the given hash function. A source that does
// not support BLAKE3 sends SHA-256.
func (s *source) manifest(ctx context.Context, version uint64, h modelwire.Hash, limit int64) (m *modelwire.Manifest, err error) {
	query := "/manifest?digests"
	if h != modelwire.SHA256 {
		query += "=" + h.String()
	}
	err = s.again(ctx, func() (bool, error) {
		a, err := s.do(ctx, http.MethodGet, s.path(version, query))
		if err != nil {
			return false, err
		}
		defer a.Close()
		text, err := a.readAll(maxManifestBytes)
		if err != nil {
			return false, err
		}
		m, err = modelwire.ParseManifest(text, modelwire.Limits{Bytes: limit})
		return true, refusal(err)
	})
	if err == nil && version != 0 && m.Version != version {
		return nil, fmt.Errorf("%w: requested version %d, got %d", ErrSource, version, m.Version)
	}
	return m, err
}

// refusal converts the errors of an invalid manifest.
func refusal(err error) error {
	switch {
	case errors.Is(err, modelwire.ErrLimit):
		return fmt.Errorf("%w: %w; see --max-model", ErrTooLarge, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrSource, err)
	}
	return nil
}
