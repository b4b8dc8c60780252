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
type Mark struct {
	Version int `json:"v"`
	// VMID that the mark was made for: a copy or a restored backup has another one.
	VMID int `json:"vmid"`
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string `json:"cluster"`
	// Name of the Claim or ProxmoxTemplate, for people.
	Name string `json:"name,omitempty"`

	ClaimUID string `json:"claim,omitempty"`
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

// Read finds the mark in a guest's notes. Notes without one, or with more than one
// (somebody pasted notes together), say nothing about us.
func Read(notes string) (Mark, bool) {
	found := pattern.FindAllStringSubmatch(notes, -1)
	if len(found) != 1 {
		return Mark{}, false
	}
	var m Mark
	if err := json.Unmarshal([]byte(found[0][1]), &m); err != nil || m.Version != version || m.KubeCluster == "" {
		return Mark{}, false
	}
	return m, true
}
