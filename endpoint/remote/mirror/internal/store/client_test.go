package store

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client follows redirects from a TLS host to other TLS hosts without its credentials, and refuses redirects to hosts
// without TLS.
func TestRedirects(t *testing.T) {
	asked := make(chan string, 1)
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("bytes came without TLS") }))
	defer plain.Close()
	other := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization") + r.Header.Get("Cookie")
	}))
	defer other.Close()
	var to string
	first := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	}))
	defer first.Close()
	client := first.Client()
	client.CheckRedirect = withoutCredentials
	get := func(where string) error {
		to = where
		r, err := http.NewRequest(http.MethodGet, first.URL, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("Cookie", "secret")
		resp, err := client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.NoError(t, get(other.URL))
	require.Empty(t, <-asked, "credentials went to another host")
	err := get(plain.URL)
	require.ErrorIs(t, err, ErrAnswer)
	require.ErrorContains(t, err, "from https to http")
	require.ErrorIs(t, get(first.URL), ErrAnswer, "in circles")
}
