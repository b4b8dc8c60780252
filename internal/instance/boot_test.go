// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// bootObjects is an API server with Secrets and ConfigMaps, of which each has the key user-data. It
// forbids to read others.
type bootObjects struct {
	client.Reader
	userData map[string]string
}

func (o bootObjects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	text, ok := o.userData[key.Name]
	if !ok && key.Name != "kube-root-ca.crt" {
		return apierrors.NewForbidden(schema.GroupResource{}, key.Name, nil)
	}
	switch into := into.(type) {
	case *corev1.Secret:
		into.Data = map[string][]byte{"user-data": []byte(text)}
	case *corev1.ConfigMap:
		into.Data = map[string]string{"user-data": text, "ca.crt": "CA"}
	}
	return nil
}

// bootSource returns a source with the user data of Secrets and ConfigMaps by name.
func bootSource(userData map[string]string) boot.Source {
	return boot.Source{Reader: bootObjects{userData: userData}, Version: boot.FixedVersion("v1.36.0")}
}

// bootClass returns a class with boot data.
func bootClass(options v1alpha1.MetadataOptions) *v1alpha1.ProxmoxNodeClass {
	options.Type = v1alpha1.MetadataTypeCDROM
	return &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{MetadataOptions: options}}
}

var templatesRefs = []v1alpha1.TemplatesReference{{Kind: "ConfigMap", Namespace: "team", Name: "base"}, {Namespace: "team", Name: "own"}}

func TestPreviewForbidden(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options      v1alpha1.MetadataOptions
		source, help string
	}{
		"secret": {
			v1alpha1.MetadataOptions{TemplatesRef: &v1alpha1.SecretReference{Namespace: "team", Name: "templates"}},
			"secret team/templates of spec.metadataOptions.templatesRef",
			"; check the name, and to let the controller read it, add templates to bootDataSecrets.team of the chart",
		},
		"config_map": {
			v1alpha1.MetadataOptions{TemplatesRefs: templatesRefs},
			"configmap team/base of spec.metadataOptions.templatesRefs[0]", "add base to bootDataConfigMaps.team of the chart",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := bootSource(nil).Preview(t.Context(), bootClass(test.options), nil)
			NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(test.source), ContainSubstring(test.help))))
		})
	}
}

func TestTemplatesInParts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	class := bootClass(v1alpha1.MetadataOptions{TemplatesRefs: templatesRefs, OnChange: v1alpha1.BootDataChangeReplace})
	source := func(base, own string) boot.Source { return bootSource(map[string]string{"base": base, "own": own}) }
	const config = "#cloud-config\nhostname: a{{ .Kubernetes.Version }}\n"
	files, err := source(config, "#!/bin/sh\n").Preview(t.Context(), class, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(files.UserData)).To(And(ContainSubstring("text/cloud-config"), ContainSubstring("text/x-shellscript")))
	files, err = source("", config).Preview(t.Context(), bootClass(v1alpha1.MetadataOptions{TemplatesRefs: templatesRefs[1:]}), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(files.UserData)).To(ContainSubstring("hostname: av1.36.0"))

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
	class := bootClass(v1alpha1.MetadataOptions{TemplatesRefs: templatesRefs[1:]})
	source := bootSource(map[string]string{
		"own": `#!/bin/sh{{ range .Network.Interfaces }}` + "\n" + `ip address add {{ cidrslaac .MacAddr .NodeAddress6 }} via {{ cidrhost .NodeAddress4 }}{{ end }}`,
	})
	g.Expect(source.Check(t.Context(), inventory.View{}, class)).To(Succeed(), "before the hosts are known")

	template := proxmox.VMConfig{Options: map[string]string{
		"template": "1", "scsi0": "local:base-1-disk-0,size=3G", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
	}}
	class.Status.SelectedZones = []string{"r/pve1/900"}
	check := func(bridge proxmox.Bridge) error {
		bridge.Name = "vmbr0"
		snapshot := observed.NewSnapshot(observed.Result{
			Region: "r", Resources: proxmox.Resources{
				Hosts:  []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: 4, MemoryBytes: 8 << 30}},
				Guests: []proxmox.GuestRow{{VMID: 900, Kind: proxmox.KindQEMU, Host: "pve1", Status: "stopped", Template: true}},
			},
			Configs: map[int]*proxmox.VMConfig{900: &template}, Facts: &observed.Facts{Bridges: map[string]map[string]proxmox.Bridge{"pve1": {"vmbr0": bridge}}},
		}, nil, observed.VMIDRange{})
		return source.Check(t.Context(), inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, nil, nil, declared.Settings{}, declared.Records{}), class)
	}
	g.Expect(check(proxmox.Bridge{CIDR4: netip.MustParsePrefix("10.0.0.2/24"), CIDR6: netip.MustParsePrefix("fd00::2/64")})).To(Succeed())
	g.Expect(check(proxmox.Bridge{CIDR4: netip.MustParsePrefix("10.0.0.2/24")})).NotTo(Succeed(), "the bridge has no IPv6 address")
}

// versionServer is an API server with a version.
type versionServer struct {
	version string
	err     error
	reads   int
	held    chan struct{} // if it is not nil, reads wait until it is closed
}

func (s *versionServer) ServerVersion() (*version.Info, error) {
	s.reads++
	if s.held != nil {
		<-s.held
	}
	return &version.Info{GitVersion: s.version}, s.err
}

func TestServerVersion(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		g := NewWithT(t)
		api := &versionServer{version: "v1.35.1"}
		current, err := boot.NewServerVersion(api, clock.RealClock{})
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(time.Minute)
		api.version, api.held = "v1.36.3", make(chan struct{})
		read := make(chan string)
		go func() { read <- current(t.Context()) }()
		synctest.Wait()
		g.Expect(current(t.Context())).To(Equal("v1.35.1"), "a launch does not wait while another one reads the version")
		close(api.held)
		g.Expect(<-read).To(Equal("v1.36.3"))
		g.Expect(current(t.Context())).To(Equal("v1.36.3"))
		g.Expect(api.reads).To(Equal(2), "it is cached")

		api.version, api.err = "", errors.New("connection refused")
		time.Sleep(2 * time.Minute)
		g.Expect(current(t.Context())).To(Equal("v1.36.3"), "the last known one")
		_, err = boot.NewServerVersion(api, clock.RealClock{})
		g.Expect(err).To(MatchError("reading the API server's version: connection refused"))
	})
}
