// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"regexp"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

var sshKey = regexp.MustCompile(`^(?:[a-z\-]+="?[^"\s]*"?\s+)?(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp(?:256|384|521)|sk-[a-z0-9@.\-]+)\s+AAAA[0-9A-Za-z+/]+={0,3}(?:\s.*)?$`)

// CheckSSHKeys returns an error if a value of the sshkeys option contains an invalid key. The value is URL-encoded
// twice.
func CheckSSHKeys(v string) error {
	text, err := url.PathUnescape(v)
	if err != nil {
		return api.Failf("SSH public key validation error")
	}
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !sshKey.MatchString(line) || !isCompleteKey(line) {
			return api.Failf("SSH public key validation error")
		}
	}
	return nil
}

// isCompleteKey reports whether the binary form of a key is complete and matches the type in its text.
func isCompleteKey(line string) bool {
	fields := strings.Fields(line)
	for i, f := range fields {
		if !strings.HasPrefix(f, "AAAA") || i == 0 {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(f)
		if err != nil {
			return false
		}
		parts, ok := parseSSHStrings(raw)
		return ok && len(parts) > 1 && string(parts[0]) == fields[i-1] && (fields[i-1] != "ssh-ed25519" || len(parts[1]) == 32)
	}
	return false
}

func parseSSHStrings(raw []byte) (parts [][]byte, ok bool) {
	for len(raw) > 0 {
		if len(raw) < 4 {
			return nil, false
		}
		n := int(binary.BigEndian.Uint32(raw))
		if n < 0 || n > len(raw)-4 {
			return nil, false
		}
		parts = append(parts, raw[4:4+n])
		raw = raw[4+n:]
	}
	return parts, true
}

// HashPassword returns a password in the form of crypt(3) with SHA-256. No simulated guest can log in with it.
func HashPassword(password string) string {
	if strings.HasPrefix(password, "$5$") {
		return password
	}
	var salt [6]byte
	_, _ = rand.Read(salt[:]) // never fails
	s := base64.RawStdEncoding.EncodeToString(salt[:])
	sum := sha256.Sum256([]byte(s + password))
	return "$5$" + s + "$" + base64.RawStdEncoding.EncodeToString(sum[:])
}
