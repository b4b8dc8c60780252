// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// UPID identifies a task: UPID:host:pid:pstart:starttime:type:id:user[!token]:
//
// It is empty for a call that needed no task.
type UPID string

// upidPattern is as strict as Proxmox's own parser.
var upidPattern = regexp.MustCompile(
	`^UPID:([a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// Positions of the fields in a UPID split at the colons.
const (
	upidHost = iota + 1
	upidPID
	upidPStart
	upidStarted
	upidKind
	upidID
	upidUser
)

// Valid reports whether Proxmox accepts the UPID.
func (u UPID) Valid() bool { return upidPattern.MatchString(string(u)) }

// Host returns the Host that runs the task and serves its status.
func (u UPID) Host() string { return u.field(upidHost) }

// Kind returns the task's type: qmclone, qmstart, imgcopy...
func (u UPID) Kind() string { return u.field(upidKind) }

// ID returns the ID of the task's object, usually a VMID. For qmclone it is the
// source's.
func (u UPID) ID() string { return u.field(upidID) }

// User returns the user who started the task: user@realm or user@realm!token.
func (u UPID) User() string { return u.field(upidUser) }

// Started returns the start time by the Host's clock, or the zero time if the UPID is
// invalid.
func (u UPID) Started() time.Time {
	seconds, err := strconv.ParseInt(u.field(upidStarted), 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

func (u UPID) field(i int) string {
	if !u.Valid() {
		return ""
	}
	return strings.Split(string(u), ":")[i]
}
