// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"context"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// forbidding is an API server that forbids to read Secrets.
type forbidding struct{ client.Reader }

func (forbidding) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, key.Name, nil)
}

func TestPreviewForbiddenSecret(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: "team", Name: "templates"}}
	_, err := boot.Source{Reader: forbidding{}, Namespace: "kube-system"}.Preview(t.Context(), class, nil)
	NewWithT(t).Expect(err).To(MatchError(And(
		ContainSubstring("secret team/templates of spec.metadataOptions.templatesRef"), ContainSubstring("; check the name, and to let the controller read it, add templates to bootDataSecrets.team of the chart"),
	)))
}

func TestPreviewForbiddenConfigMap(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRefs: []v1alpha1.TemplatesReference{{Kind: "ConfigMap", Namespace: "team", Name: "base"}}}
	_, err := boot.Source{Reader: forbidding{}, Namespace: "kube-system"}.Preview(t.Context(), class, nil)
	NewWithT(t).Expect(err).To(MatchError(And(
		ContainSubstring("configmap team/base of spec.metadataOptions.templatesRefs[0]"), ContainSubstring("add base to bootDataConfigMaps.team of the chart"),
	)))
}

// objects is an API server with Secrets and ConfigMaps, each with the key user-data.
type objects struct {
	client.Reader
	secrets, configMaps map[string]string
}

func (o objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Secret:
		into.Data = map[string][]byte{"user-data": []byte(o.secrets[key.Name])}
	case *corev1.ConfigMap:
		into.Data = map[string]string{"user-data": o.configMaps[key.Name], "ca.crt": "CA"}
	}
	return nil
}

func TestTemplatesInParts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	refs := []v1alpha1.TemplatesReference{{Kind: "ConfigMap", Namespace: "team", Name: "base"}, {Namespace: "team", Name: "own"}}
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRefs: refs, OnChange: v1alpha1.BootDataChangeReplace}
	source := func(base, own string) boot.Source {
		return boot.Source{
			Reader:  objects{secrets: map[string]string{"own": own}, configMaps: map[string]string{"base": base}},
			Version: func(context.Context) string { return "v1.36.0" },
		}
	}
	const config = "#cloud-config\nhostname: a\n"
	files, err := source(config, "#!/bin/sh\n").Preview(t.Context(), class, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(files.UserData)).To(And(ContainSubstring("text/cloud-config"), ContainSubstring("text/x-shellscript")))

	_, err = source(config, "#cloud-config\n{{ .Nothing }}").Preview(t.Context(), class, nil)
	g.Expect(err).To(MatchError(ContainSubstring("rendering spec.metadataOptions.templatesRefs: secret team/own of item 1: user-data: line 2")))

	hashes := map[string]bool{}
	for _, content := range [][2]string{{config, ""}, {config, "#!/bin/sh\n"}, {"", config}} {
		hash, err := source(content[0], content[1]).Hash(t.Context(), class)
		g.Expect(err).NotTo(HaveOccurred())
		hashes[hash] = true
	}
	g.Expect(hashes).To(HaveLen(3), "every part is in the hash")
}

// Templates can compute addresses from those of the host's bridge, in the check as at launch.
func TestCheckBridgeAddress(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: "team", Name: "own"}}
	source := boot.Source{
		Reader: objects{secrets: map[string]string{
			"own": `#!/bin/sh{{ range .Network.Interfaces }}` + "\n" + `ip address add {{ cidrslaac .MacAddr .NodeAddress6 }} via {{ cidrhost .NodeAddress4 }}{{ end }}`,
		}},
		Version: func(context.Context) string { return "v1.36.0" },
	}
	g.Expect(source.Check(t.Context(), inventory.View{}, class)).To(Succeed(), "before the hosts are known")

	template := proxmox.VMConfig{Options: map[string]string{"template": "1", "scsi0": "local:base-1-disk-0,size=3G", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0"}}
	class.Status.SelectedZones = []string{"r/pve1/900"}
	check := func(bridge proxmox.Bridge) error {
		bridge.Name = "vmbr0"
		snapshot := inventory.NewSnapshot(inventory.PollResult{
			Region: "r", Resources: proxmox.Resources{
				Hosts:  []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: 4, MemoryBytes: 8 << 30}},
				Guests: []proxmox.GuestRow{{VMID: 900, Kind: proxmox.KindQEMU, Host: "pve1", Status: "stopped", Template: true}},
			},
			Configs: map[int]*proxmox.VMConfig{900: &template}, Facts: &inventory.Facts{Bridges: map[string]map[string]proxmox.Bridge{"pve1": {"vmbr0": bridge}}},
		}, nil, inventory.VMIDRange{})
		return source.Check(t.Context(), inventory.NewView(map[string]*inventory.Snapshot{"r": snapshot}, nil, nil, inventory.Settings{}), class)
	}
	g.Expect(check(proxmox.Bridge{CIDR4: netip.MustParsePrefix("10.0.0.2/24"), CIDR6: netip.MustParsePrefix("fd00::2/64")})).To(Succeed())
	g.Expect(check(proxmox.Bridge{CIDR4: netip.MustParsePrefix("10.0.0.2/24")})).NotTo(Succeed(), "the bridge has no IPv6 address")
}
