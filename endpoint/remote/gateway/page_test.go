package gateway_test

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/browsertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

const tabKey = 9

// The page updates live, is readable in light and dark mode, and works with a keyboard and a screen reader. If
// SHAREDTENSOR_SCREENSHOTS names a directory, the test writes screenshots to it.
func TestPage(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "llm/7b=50331648", "--model", "<img src=x onerror=alert(1)>=4096")
	gw := remotetest.StartGateway(t, owner.Socket)
	ready(t, gw, http.StatusOK)
	client := dialOwner(t, owner)
	handle, err := client.Acquire(t.Context(), "llm/7b", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer handle.Close()
	running, err := client.Submit(t.Context(), "work", remotetest.WorkArgs{Steps: 1000, PaceMS: 200})
	require.NoError(t, err)
	var sum int
	require.NoError(t, client.Call(t.Context(), "add", remotetest.AddArgs{A: 1, B: 2}, &sum))
	require.Error(t, client.Call(t.Context(), "fail", "on purpose", nil))

	page := browsertest.Open(t, gw.HTTP()+"/", 1280, 1700)
	shows := func(id, text string) string {
		return fmt.Sprintf("!!document.getElementById(%q)?.innerText.includes(%q)", id, text)
	}
	page.WaitFor(shows("models", "llm/7b"))
	page.WaitFor(shows("tasks", running.ID))
	page.WaitFor(shows("endpoints", "add"))
	page.WaitFor(shows("calls", "GET /page.js"))
	page.WaitFor(shows("memory", "models 48"))
	page.WaitFor(shows("models", "page test"))
	page.WaitFor(shows("state", "ready"))
	page.WaitFor(shows("clients", "without a name"))
	page.WaitFor(shows("refusals", "over the limit of bytes in flight"))
	page.WaitFor(shows("warning", "no identity required: serves processes of uid"))
	require.Equal(t, "0", page.Eval("document.images.length"), "names of models are text")

	t.Run("live", func(t *testing.T) {
		rows := page.Eval("document.querySelectorAll('#models tbody tr').length")
		page.Eval("void (window.row = document.querySelector('#models tbody tr'))")
		_, err := client.Publish(t.Context(), "llm/7b", handle.StateDict().Alias(), endpoint.PublishOptions{})
		require.NoError(t, err)
		page.WaitFor(shows("models", "2 (newest)"))
		require.NotEqual(t, rows, page.Eval("document.querySelectorAll('#models tbody tr').length"))
		require.Equal(t, "true", page.Eval("document.body.contains(window.row)"), "rows stay the same elements")
		first := page.Eval("document.querySelector('#tasks progress').value")
		page.WaitFor(fmt.Sprintf("document.querySelector('#tasks progress').value > %s", first))
	})
	t.Run("filter and pause", func(t *testing.T) {
		page.Eval("document.getElementById('filter-models').value = 'llm'; document.getElementById('filter-models').dispatchEvent(new Event('input'))")
		page.WaitFor("!document.getElementById('models').innerText.includes('onerror')")
		page.Eval("document.getElementById('filter-models').value = ''; document.getElementById('filter-models').dispatchEvent(new Event('input'))")
		page.WaitFor(shows("models", "onerror"))
		page.Eval("document.getElementById('pause').click()")
		require.Equal(t, "true", page.Eval("document.getElementById('pause').getAttribute('aria-pressed')"))
		page.Eval("document.getElementById('pause').click()")
	})
	t.Run("keyboard", func(t *testing.T) {
		page.Press("Tab", tabKey)
		require.Equal(t, "Skip to content", page.Eval("document.activeElement.textContent"), "the way past the header comes first")
		seen := map[string]bool{}
		for range 20 {
			page.Press("Tab", tabKey)
			seen[page.Eval("document.activeElement.id || document.activeElement.getAttribute('aria-labelledby') || document.activeElement.textContent")] = true
			require.NotEqual(t, "none 0px", page.Eval("(s => s.outlineStyle + ' ' + s.outlineWidth)(getComputedStyle(document.activeElement))"), "the focus can be seen")
		}
		for _, id := range []string{"pause", "theme", "filter-models", "h-models", "filter-tasks", "/metrics"} {
			require.Contains(t, seen, id)
		}
	})
	t.Run("screen reader", func(t *testing.T) {
		roles := map[string]int{}
		for _, n := range page.Accessibility() {
			roles[n.Role]++
			if n.Focusable && n.Role != "main" && n.Role != "RootWebArea" {
				require.NotEmpty(t, n.Name, "something that takes the focus has no name: %+v", n)
			}
			if n.Role == "image" || n.Role == "progressbar" || n.Role == "region" {
				require.NotEmpty(t, n.Name, "%+v", n)
			}
		}
		for _, role := range []string{"heading", "table", "rowheader", "columnheader", "status", "main", "banner", "progressbar", "image"} {
			require.Positive(t, roles[role], "%s in %v", role, roles)
		}
	})
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			page.Media("prefers-color-scheme", scheme)
			page.WaitFor("matchMedia('(prefers-color-scheme: " + scheme + ")').matches")
			for _, selector := range []string{"h1", "#models td", "#models thead th", ".facts dt", "#state", "footer p", "footer a", ".state-running", ".legend li"} {
				require.GreaterOrEqual(t, contrast(t, page, selector), 4.5, "%s can hardly be read", selector)
			}
			page.Screenshot("page-" + scheme)
		})
	}
	t.Run("narrow", func(t *testing.T) {
		for _, width := range []int{360, 390, 480} {
			narrow := browsertest.Open(t, gw.HTTP()+"/", width, 1200)
			narrow.Media("prefers-color-scheme", map[bool]string{true: "dark", false: "light"}[width == 360])
			narrow.WaitFor(shows("clients", "none"))
			narrow.WaitFor(shows("models", "llm/7b"))
			narrow.WaitFor(shows("tasks", running.ID))
			require.Equal(t, "true", narrow.Eval("document.documentElement.scrollWidth <= innerWidth"), "the page does not scroll sideways at %d pixels", width)
			cut := narrow.Eval(`[...document.querySelectorAll("tbody th, tbody td, dd, .legend li")].filter((e) => {
				const box = e.getBoundingClientRect();
				return box.right > innerWidth || e.scrollWidth > e.clientWidth + 1;
			}).map((e) => e.textContent).join("; ")`)
			require.Empty(t, strings.Trim(cut, `"`), "figures are cut at %d pixels", width)
			narrow.Screenshot(fmt.Sprintf("page-narrow-%d", width))
		}
	})
	require.Empty(t, page.Problems())
	for _, url := range page.Requests() {
		require.True(t, strings.HasPrefix(url, gw.HTTP()+"/") || strings.HasPrefix(url, "about:"), "the page asks nobody else: %s", url)
	}
	t.Run("owner gone", func(t *testing.T) {
		owner.Kill()
		page.WaitFor(shows("state", "not ready"))
		page.WaitFor(shows("models", "no models published"))
		page.Screenshot("page-no-owner")
	})
	t.Run("gateway gone", func(t *testing.T) {
		gw.Kill()
		page.WaitFor(shows("state", "no connection to the gateway"))
	})
}

// dialOwner returns a direct client of the owner.
func dialOwner(t *testing.T, owner *remotetest.Owner) *endpoint.Client {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: owner.Socket, Devices: []driver.Device{dev}, Label: "page test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// contrast returns the WCAG contrast ratio between an element's color and its background.
func contrast(t *testing.T, page *browsertest.Page, selector string) float64 {
	t.Helper()
	colours := page.Eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		let b = e;
		while (getComputedStyle(b).backgroundColor === "rgba(0, 0, 0, 0)" && b.parentElement) b = b.parentElement;
		return getComputedStyle(e).color + ";" + getComputedStyle(b).backgroundColor;
	})()`, selector))
	front, back, _ := strings.Cut(colours, ";")
	a, b := luminance(t, front), luminance(t, back)
	return (math.Max(a, b) + 0.05) / (math.Min(a, b) + 0.05)
}

// luminance returns the luminance of a color such as "rgb(1, 2, 3)".
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	inner, found := strings.CutPrefix(strings.TrimSuffix(colour, ")"), "rgb(")
	require.True(t, found, colour)
	var sum float64
	for i, text := range strings.Split(inner, ",") {
		n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		require.NoError(t, err, colour)
		v := n / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		sum += v * []float64{0.2126, 0.7152, 0.0722}[i]
	}
	return sum
}

// Samples are taken only while the page is open.
func TestPageSamplesOnlyForViewers(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	ready(t, gw, http.StatusOK)
	client := dialOwner(t, owner)
	requests := func() uint64 {
		info, err := client.ServerInfo(t.Context())
		require.NoError(t, err)
		return info.Stats.Requests
	}
	resp, err := http.Get(gw.HTTP() + "/v1/events")
	require.NoError(t, err)
	before := requests()
	remotetest.Eventually(t, func() error {
		if requests() < before+20 {
			return fmt.Errorf("nobody asks the owner")
		}
		return nil
	})
	require.NoError(t, resp.Body.Close())
	remotetest.Eventually(t, func() error {
		at := requests()
		time.Sleep(1500 * time.Millisecond)
		if grown := requests() - at; grown > 1 { // the status request
			return fmt.Errorf("it is still asked: %d", grown)
		}
		return nil
	})
}
