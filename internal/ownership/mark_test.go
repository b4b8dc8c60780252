// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ownership_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

var template = ownership.Mark{
	VMID: 1000, KubeCluster: "7c0e0a53", Name: "ubuntu", TemplateUID: "5f1d4d7a", Generation: "4711", Hash: "4711", HashVersion: "v2", Settings: "42",
}

func TestReadNotes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	notes := template.Notes("Ubuntu 24.04\n\nAsk the platform team.")
	g.Expect(notes).To(HavePrefix("Ubuntu 24.04\n\nAsk the platform team.\n\n<!-- "), "the text precedes the mark")
	read, ok := ownership.Read(notes + "\nhandle with care")
	g.Expect(ok).To(BeTrue())
	read.Version = 0
	g.Expect(read).To(Equal(template))
}

func TestReadNoMark(t *testing.T) {
	t.Parallel()
	for name, notes := range map[string]string{
		"none":                  "",
		"of_another_user":       "made by hand",
		"pasted_together":       template.Notes("a") + template.Notes("b"),
		"not_decodable":         "<!-- karpenter.proxmox.sinextra.dev {oops} -->",
		"no_version":            `<!-- karpenter.proxmox.sinextra.dev {"vmid":1000,"cluster":"c"} -->`,
		"no_Kubernetes_cluster": `<!-- karpenter.proxmox.sinextra.dev {"v":1,"vmid":1000} -->`,
		"mark_in_the_text":      ownership.Mark{}.Notes(template.Notes("a")),
	} {
		_, ok := ownership.Read(notes)
		NewWithT(t).Expect(ok).To(BeFalse(), name)
	}
}

func TestImageID(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	marked := proxmox.VMConfig{Options: map[string]string{"description": template.Notes(""), "meta": "ctime=1"}}
	g.Expect(ownership.ImageID(1000, marked)).To(Equal("4711"))
	g.Expect(ownership.ImageLabel(1000, marked)).To(Equal("4711"))

	copied := ownership.ImageID(1001, marked)
	g.Expect(copied).To(HavePrefix("1001-"), "the mark of a copy is ignored")
	g.Expect(ownership.ImageLabel(1001, marked)).To(Equal("1001"))
	marked.Options["meta"] = "ctime=2"
	g.Expect(ownership.ImageID(1001, marked)).NotTo(Equal(copied), "recreated with the same VMID")
}

func TestNotesKeepUnknownFields(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	mark, ok := ownership.Read(`<!-- karpenter.proxmox.sinextra.dev {"v":1,"vmid":20123,"cluster":"c","claim":"u","later":{"a":1}} -->`)
	g.Expect(ok).To(BeTrue())
	mark.Machine = "db-1"
	g.Expect(mark.Comment()).To(And(ContainSubstring(`"later":{"a":1}`), ContainSubstring(`"machine":"db-1"`), ContainSubstring(`"vmid":20123`)))
}

// Notes that would be too long for Proxmox lose the generated text, not that of an administrator.
func TestNotesTooLong(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const ours = "Karpenter managed instance, class=default, capacity-type=on-demand\n\nThis VM is managed by Karpenter. Do not change it.\n\n- NodePool: a\n- NodeClaim: b\n"
	own := strings.Repeat("call the platform team ", 344)
	notes := template.Notes(ours + "\n" + own)
	g.Expect(len(notes)).To(BeNumerically("<=", 8192))
	g.Expect(notes).To(Equal(template.Notes(own)), "only the text of the administrator stays")
	g.Expect(template.Notes(ours + "\nshort")).To(And(ContainSubstring(ours), ContainSubstring("short")))
}
