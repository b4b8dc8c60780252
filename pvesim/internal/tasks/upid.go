// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tasks models Proxmox's worker processes: an id that carries host, process, type and owner, a log, and an end
// that can come long after the call that started the task has answered.
package tasks

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// UPID is the parsed id of a task.
type UPID struct {
	Host      string
	PID       int
	PStart    int64
	StartTime int64
	Type      string
	ID        string
	User      string // with "!token" if a token started it
}

var upidPattern = regexp.MustCompile(`^UPID:([a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// ParseUPID decodes a task id; ok is false if it does not have the form of one.
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

// Owner splits the starting identity into the user and, if a token acted, the token's name.
func (u UPID) Owner() (user, token string) {
	user, token, _ = strings.Cut(u.User, "!")
	return user, token
}

// escapeID hides what would break the colon-separated form.
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
