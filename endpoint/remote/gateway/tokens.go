package gateway

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// A token is long enough not to be guessed; a file of them is short enough to be read at once.
const (
	minTokenBytes     = 16
	maxTokenFileBytes = 1 << 20
)

// tokenFile is a file of tokens, read again when it changes.
type tokenFile struct {
	list *reloaded[[]token]
}

// token is one line of the file. Only the digest is kept, so that comparing tells nothing of the token by how long it
// takes.
type token struct {
	digest [sha256.Size]byte
	id     Identity
}

func openTokenFile(path string, log *slog.Logger) (*tokenFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 && log != nil {
		log.Warn("others can read the file of tokens", "file", path, "mode", info.Mode().Perm().String())
	}
	list, err := newReloaded(log, func() ([]token, error) { return readTokens(path) }, path)
	if err != nil {
		return nil, err
	}
	return &tokenFile{list}, nil
}

func readTokens(path string) ([]token, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxTokenFileBytes {
		return nil, fmt.Errorf("%s: a file of tokens has at most %d bytes", path, maxTokenFileBytes)
	}
	var list []token
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		one, err := parseToken(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if one != nil {
			list = append(list, *one)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s holds no token: write one of at least %d bytes, such as what openssl rand -hex 32 prints", path, minTokenBytes)
	}
	return list, nil
}

// parseToken reads a line; nil for one that is empty or a comment. Errors do not repeat the token.
func parseToken(line string) (*token, error) {
	line, _, _ = strings.Cut(line, "#")
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil, nil
	}
	if len(words[0]) < minTokenBytes {
		return nil, fmt.Errorf("a token has at least %d bytes", minTokenBytes)
	}
	one := &token{digest: sha256.Sum256([]byte(words[0])), id: Identity{Method: "token"}}
	if len(words) > 1 {
		one.id.Name = words[1]
	}
	if len(words) > 2 {
		one.id.ReadOnly = words[2] == "read-only"
	}
	if len(words) > 3 || len(words) == 3 && !one.id.ReadOnly {
		return nil, fmt.Errorf("a line is TOKEN [NAME [read-only]]")
	}
	return one, nil
}

// find looks a token up. It takes as long for a token that is nearly right as for any other.
func (f *tokenFile) find(presented string) (Identity, bool) {
	digest := sha256.Sum256([]byte(presented))
	for _, one := range f.list.get() {
		if one.digest == digest {
			return one.id, true
		}
	}
	return Identity{}, false
}
