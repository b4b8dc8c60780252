// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ownership is the mark in a guest's notes by which this provider knows
// its own, VMs and Templates alike. What carries no mark, or one that does not fit
// in every part, belongs to somebody else and is never touched, whatever its name.
package ownership

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Mark says whose a guest is. It names either a Claim or a ProxmoxTemplate.
//
// Fields may be added within a version as long as a controller that ignores them does
// no harm. Anything else is another version. The fields of header never change.
type Mark struct {
	Version int `json:"v"`
	// VMID that the mark was made for: a copy or a restored backup has another one.
	VMID int `json:"vmid"`
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string `json:"cluster"`
	// Name of the Claim or ProxmoxTemplate, for people.
	Name string `json:"name,omitempty"`

	ClaimUID string `json:"claim,omitempty"`
	// UUID is the VM's SMBIOS UUID where that is not the Claim's: the VM was adopted.
	UUID string `json:"uuid,omitempty"`
	// CPUs of the Host that the VM has to itself, as a list ("2-3,34-35"), and the one
	// of each vCPU, in their order ([2,34,3]). A hookscript pins by them. What it
	// must check first: VMID is the VM's own, there are as many as the VM has vCPUs,
	// and every one of them is among CPUs and a CPU of the Host.
	CPUs string `json:"cpus,omitempty"`
	Pin  []int  `json:"pin,omitempty"`

	// Hooks are the scripts that the hookscript runs on the Host, by their bare names.
	Hooks []string `json:"hooks,omitempty"`

	TemplateUID string `json:"template,omitempty"`
	// Generation names what a Template was made of: VMs of the same generation
	// are the same, whatever the VMID of their Template.
	Generation string `json:"generation,omitempty"`
	// Hash and HashVersion are of the spec that the Template was made from.
	Hash        string `json:"hash,omitempty"`
	HashVersion string `json:"hashVersion,omitempty"`
	// Settings is the hash of what was last written to the Template in place.
	Settings string `json:"settings,omitempty"`
	// Pool that the Template was last put into.
	Pool string `json:"pool,omitempty"`
}

// HookName is what a name in Hooks looks like: the name of a file, and never a
// way to one.
var HookName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

const version = 1

// header is the part of a mark that every version, past and future, can read: whose
// the guest is, and which CPUs it has to itself. With it a controller that was
// downgraded still knows its VMs, counts them and lets nobody forget them, although
// it must not touch what it does not understand.
type header struct {
	Version     int    `json:"v"`
	VMID        int    `json:"vmid"`
	KubeCluster string `json:"cluster"`
	ClaimUID    string `json:"claim"`
	TemplateUID string `json:"template"`
	CPUs        string `json:"cpus"`
}

// The mark hides in an HTML comment, so that the notes, which Proxmox renders as
// Markdown, stay readable. People may write around it.
const (
	opening = "<!-- karpenter.proxmox.sinextra.dev "
	closing = " -->"
)

var pattern = regexp.MustCompile(regexp.QuoteMeta(opening) + `(\{[^\n]*\})` + closing)

// Comment is the mark as it stands in notes.
func (m Mark) Comment() string {
	m.Version = version
	raw, err := json.Marshal(m)
	if err != nil {
		// Strings and integers always marshal.
		panic(err)
	}
	return opening + string(raw) + closing
}

// Notes are words for people with the mark below them.
func (m Mark) Notes(words string) string {
	words = pattern.ReplaceAllString(words, "")
	return fmt.Sprintf("%s\n\n%s\n", strings.TrimRight(words, "\n "), m.Comment())
}

// Newer tells that a later release wrote the mark. Only its header was read: it says
// whose the guest is, but not whether it may be touched.
func (m Mark) Newer() bool { return m.Version > version }

// Read finds the mark in a guest's notes. Notes without one, or with more than one
// (somebody pasted notes together), say nothing about us. Whoever is about to change
// a guest asks Newer first.
func Read(notes string) (Mark, bool) {
	found := pattern.FindAllStringSubmatch(notes, -1)
	if len(found) != 1 {
		return Mark{}, false
	}
	raw := []byte(found[0][1])
	var h header
	if err := json.Unmarshal(raw, &h); err != nil || h.Version < 1 || h.KubeCluster == "" {
		return Mark{}, false
	}
	if h.Version > version {
		return Mark{Version: h.Version, VMID: h.VMID, KubeCluster: h.KubeCluster, ClaimUID: h.ClaimUID, TemplateUID: h.TemplateUID, CPUs: h.CPUs}, true
	}
	var m Mark
	if err := json.Unmarshal(raw, &m); err != nil {
		return Mark{}, false
	}
	return m, true
}
