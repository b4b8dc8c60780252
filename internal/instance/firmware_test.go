// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const butane = `variant: flatcar
version: 1.1.0
storage:
  files:
    - path: /etc/token
      contents: {inline: "{{ .Kubernetes.BootstrapToken }}"}
    - path: /etc/hostname
      contents: {inline: "{{ .Metadata.Hostname }}"}
`

// ignited makes the world's class one that hands Ignition to the firmware.
func (w *world) ignited(userData string) {
	w.t.Helper()
	w.class.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware
	secret := &corev1.Secret{}
	w.Expect(w.kube.Get(w.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "templates"}, secret)).To(Succeed())
	secret.Data["user-data"] = []byte(userData)
	w.Expect(w.kube.Update(w.t.Context(), secret)).To(Succeed())
}

func TestIgnitionIsHandedToTheFirmwareAndTakenBack(t *testing.T) {
	onBoth(t, func(t *testing.T, release string) {
		const inherited = "-no-hpet"
		w := newWorld(t, 1, func(s *pvesim.Scenario) { s.Version = release }, templatesWith(map[string]string{"args": inherited}))
		w.ignited(butane)
		p := w.process(w.asRoot)
		w.Expect(p.checkBootData(t.Context(), w.class)).To(Succeed())
		claim := w.launched(p, "fw")
		in, _, err := instance.ReadIntent(claim)
		w.Expect(err).NotTo(HaveOccurred())

		var handed any
		w.Eventually(func() (ok bool) { handed, ok = w.firmware.Load(in.VMID); return ok }).WithTimeout(30 * time.Second).Should(BeTrue())
		for _, name := range []string{"opt/com.coreos/config", "opt/org.flatcar-linux/config"} {
			w.Expect(string(handed.(map[string][]byte)[name])).To(And(HavePrefix("{"), ContainSubstring("ignition"), ContainSubstring("/etc/token")), name)
		}
		cfg := w.configOf(in)
		w.Expect(cfg.Options["args"]).To(HavePrefix(inherited + " -fw_cfg "))
		w.Expect(cfg.Options["args"]).NotTo(ContainSubstring("ignition"), "arguments are for many to read")
		for _, drive := range cfg.Drives() {
			w.Expect(drive.VolumeID).NotTo(ContainSubstring(".iso"), "it is no drive")
		}

		// Once it has joined, file and token go, and the VM starts without them.
		w.Expect(p.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
		w.expectNoBootDrives()
		w.expectNoTokens()
		c := w.client()
		for _, step := range []string{"stop", "start"} {
			task, err := c.StopVM(t.Context(), in.Host, in.VMID)
			if step == "start" {
				task, err = c.StartVM(t.Context(), in.Host, in.VMID)
			}
			w.Expect(err).NotTo(HaveOccurred())
			w.Eventually(func() (bool, error) {
				status, err := c.Task(t.Context(), task)
				return status.Succeeded(), err
			}).WithTimeout(30*time.Second).Should(BeTrue(), step)
		}
		w.Expect(w.configOf(in).Options["args"]).To(Equal(inherited))
		w.deleted(p, claim)
		w.expectNothingLeft()
	})
}

func TestIgnitionIsLeftToNoVMThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.ignited(butane)
	p := w.process(w.asRoot)
	w.deleted(p, w.launched(p, "fw"))
	w.expectNothingLeft()
}

func TestALaunchWithoutItsRootLoginEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.ignited(butane)
	before := w.process(w.asRoot)
	claim, joined := w.planned(before, "fw"), w.launched(before, "joined")
	after := w.process()
	err := after.Launcher.Launch(t.Context(), claim, w.class)
	w.Expect(err).To(And(BeAssignableToTypeOf(&instance.LaunchError{}), MatchError(ContainSubstring("region "+region+": the cloud config has no login of root"))))

	// A VM that names its file must keep it, or it would not start again; its token goes.
	err = after.Deleter.CleanupBootDrive(t.Context(), w.reread(joined))
	w.Expect(err).To(MatchError(ContainSubstring("the cloud config has no login of root")))
	volumes, err := w.client().Volumes(t.Context(), "pve1", "local", "iso")
	w.Expect(err).NotTo(HaveOccurred())
	found := false
	for _, volume := range volumes {
		found = found || strings.Contains(volume.ID, string(joined.UID))
	}
	w.Expect(found).To(BeTrue())
	tokens := &corev1.SecretList{}
	w.Expect(w.kube.List(t.Context(), tokens, client.MatchingLabels{"karpenter.proxmox.sinextra.dev/nodeclaim-uid": string(joined.UID)})).To(Succeed())
	w.Expect(tokens.Items).To(BeEmpty())
}

func TestOnlyIgnitionGoesThroughTheFirmware(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.ignited("#cloud-config\nhostname: a\n")
	w.Expect(w.process(frozen, w.asRoot).checkBootData(t.Context(), w.class)).To(MatchError(
		"user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition: write it in Butane or Ignition, or set type to cdrom"))
}
