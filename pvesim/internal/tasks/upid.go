// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tasks simulates the worker processes of Proxmox. A task has a UPID with host, process, type and owner, a log,
// and a result.
package tasks

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// UPID is a parsed task ID.
type UPID struct {
	Host      string
	PID       int
	PStart    int64
	StartTime int64
	Type      string
	ID        string
	User      string // with "!token" if the caller was a token
}

var upidPattern = regexp.MustCompile(`^UPID:([a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// ParseUPID parses a UPID. It returns false if it is not valid.
func ParseUPID(s string) (u UPID, ok bool) {
	m := upidPattern.FindStringSubmatch(s)
	if m == nil {
		return UPID{}, false
	}
	pid, err := strconv.ParseInt(m[2], 16, 64)
	if err != nil {
		return UPID{}, false
	}
	u = UPID{Host: m[1], PID: int(pid), Type: m[5], ID: unescapeID(m[6]), User: m[7]}
	if u.PStart, err = strconv.ParseInt(m[3], 16, 64); err != nil {
		return UPID{}, false
	}
	if u.StartTime, err = strconv.ParseInt(m[4], 16, 64); err != nil {
		return UPID{}, false
	}
	return u, true
}

func (u UPID) String() string {
	return fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", u.Host, u.PID, u.PStart, u.StartTime, u.Type, escapeID(u.ID), u.User)
}

// Owner returns the user and, if the caller was a token, its name.
func (u UPID) Owner() (user, token string) {
	user, token, _ = strings.Cut(u.User, "!")
	return user, token
}

// escapeID escapes characters that the UPID uses as separators.
func escapeID(id string) string {
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; c == ':' || c == '/' || c <= ' ' {
			fmt.Fprintf(&b, "\\x%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

var escapedByte = regexp.MustCompile(`\\x([0-9a-f]{2})`)

func unescapeID(id string) string {
	return escapedByte.ReplaceAllStringFunc(id, func(s string) string {
		n, err := strconv.ParseUint(s[2:], 16, 8)
		if err != nil {
			return s
		}
		return string([]byte{byte(n)})
	})
}
