// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// UPID names a task: UPID:host:pid:pstart:starttime:type:id:user[!token]:
//
// The zero value stands for "Proxmox was done at once, there is no task".
type UPID string

// upidPattern is as strict as Proxmox's own parser, so that Valid tells before
// the call what Proxmox would refuse.
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

// Valid tells whether Proxmox would accept this UPID.
func (u UPID) Valid() bool { return upidPattern.MatchString(string(u)) }

// Host is where the task runs, and the only place where it can be read.
func (u UPID) Host() string { return u.field(upidHost) }

// Kind is the task's type: qmclone, qmstart, imgcopy...
func (u UPID) Kind() string { return u.field(upidKind) }

// ID is what the task is about, mostly a VMID. A qmclone names the SOURCE.
func (u UPID) ID() string { return u.field(upidID) }

// User is who started it: user@realm or user@realm!token.
func (u UPID) User() string { return u.field(upidUser) }

// Started is the Host's clock at the start; zero for an invalid UPID.
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
