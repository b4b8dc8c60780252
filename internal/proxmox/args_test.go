// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
)

func TestRootSetIgnitionFileArgs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const own = "-virtfs local,path=/tank/a,,b,mount_tag=a -smbios 'type=0,vendor=A B'"
	recorder := &lastWrite{}
	root := rootClient{recorder}
	for args, path := range map[string]string{
		own: "/var/lib/vz/template/iso/a.iso",
		own + " -fw_cfg name=opt/org.flatcar-linux/config,file=/old.ign": "/mnt/pve/nfs-1/template/iso/a.iso",
	} {
		config := VMConfig{Options: map[string]string{"args": args}, Digest: "d"}
		g.Expect(root.Set(t.Context(), "pve1", 1, config, RootOptions{IgnitionFile: new(path)})).To(Succeed())
		g.Expect(recorder.change.Set["args"]).To(Equal(own + " -fw_cfg name=opt/com.coreos/config,file=" + path + " -fw_cfg name=opt/org.flatcar-linux/config,file=" + path))
		g.Expect(recorder.change.Digest).To(Equal("d"))
		config.Options["args"] = recorder.change.Set["args"]
		g.Expect(root.Set(t.Context(), "pve1", 1, config, RootOptions{IgnitionFile: new("")})).To(Succeed())
		g.Expect(recorder.change.Set["args"]).To(Equal(own))
	}
	for _, path := range []string{"relative", "/a b", "/a,b", "/a'b", "/a/../b", "/a;b", "/a\n-device evil", "/a -device evil"} {
		recorder.change = ConfigChange{}
		for options, want := range map[*RootOptions]string{
			{IgnitionFile: new(path)}:              "cannot be named in QEMU's arguments",
			{Shares: []Plan9Share{{"data", path}}}: "of mapping data cannot be named in QEMU's arguments",
		} {
			g.Expect(root.Set(t.Context(), "pve1", 1, VMConfig{}, *options)).To(MatchError(ContainSubstring(want)), path)
		}
		g.Expect(recorder.change.Set).To(BeEmpty())
	}
}

func TestRootSetShares(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const own = "-virtfs local,path=/tank/a,mount_tag=a,id=fs0 -no-hpet"
	recorder := &lastWrite{}
	root := rootClient{recorder}
	config := VMConfig{Options: map[string]string{"args": own}, Digest: "d"}
	shares := RootOptions{Shares: []Plan9Share{{"data", "/tank/data"}, {"sets", "/tank/sets-1"}}}
	g.Expect(root.Set(t.Context(), "pve1", 1, config, shares)).To(Succeed())
	g.Expect(recorder.change.Set["args"]).To(Equal(own +
		" -virtfs local,id=karpenter-data,path=/tank/data,mount_tag=data,security_model=mapped-xattr" +
		" -virtfs local,id=karpenter-sets,path=/tank/sets-1,mount_tag=sets,security_model=mapped-xattr"))
	g.Expect(recorder.change.Digest).To(Equal("d"))

	// Writing the same shares again is a no-op, and Ignition's file does not change them.
	config.Options["args"] = recorder.change.Set["args"]
	recorder.change = ConfigChange{}
	g.Expect(root.Set(t.Context(), "pve1", 1, config, shares)).To(Succeed())
	g.Expect(recorder.change.Set).To(BeEmpty())
	g.Expect(root.Set(t.Context(), "pve1", 1, config, RootOptions{IgnitionFile: new("/iso/a.iso")})).To(Succeed())
	g.Expect(recorder.change.Set["args"]).To(HavePrefix(config.Options["args"] + " -fw_cfg "))
	for _, path := range []string{"", "/a/.."} {
		g.Expect(root.Set(t.Context(), "pve1", 1, VMConfig{}, RootOptions{Shares: []Plan9Share{{"data", path}}})).
			To(MatchError(ContainSubstring("of mapping data cannot be named in QEMU's arguments")))
	}
}

// lastWrite records the last change.
type lastWrite struct {
	VMClient
	change ConfigChange
}

func (l *lastWrite) UpdateVM(_ context.Context, _ string, _ int, change ConfigChange) error {
	l.change = change
	return nil
}
