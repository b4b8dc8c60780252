// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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

// useFirmware changes the class to Ignition by firmware.
func useFirmware(w *testenv.Env, userData string) {
	w.T.Helper()
	w.NodeClass.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware
	secret := &corev1.Secret{}
	w.Expect(w.Kube.Get(w.T.Context(), client.ObjectKey{Namespace: "kube-system", Name: "templates"}, secret)).To(Succeed())
	secret.Data["user-data"] = []byte(userData)
	w.Expect(w.Kube.Update(w.T.Context(), secret)).To(Succeed())
}

func TestLaunchIgnitionByFirmware(t *testing.T) {
	testReleases(t, func(t *testing.T, release string) {
		const inherited = "-no-hpet"
		w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) { s.Version = release }, templatesWith(map[string]string{"args": inherited})))
		useFirmware(w, butane)
		p := w.StartProcess(testenv.AsRoot())
		w.Expect(p.CheckBootData(w.NodeClass)).To(Succeed())
		claim := p.Launched("fw", w.NodeClass)
		in, _, err := instance.ReadIntent(claim)
		w.Expect(err).NotTo(HaveOccurred())

		files := w.Booted(in.VMID).Firmware
		for _, name := range []string{"opt/com.coreos/config", "opt/org.flatcar-linux/config"} {
			w.Expect(string(files[name])).To(And(HavePrefix("{"), ContainSubstring("ignition"), ContainSubstring("/etc/token")), name)
		}
		cfg := w.VMConfig(in)
		w.Expect(cfg.Options["args"]).To(HavePrefix(inherited + " -fw_cfg "))
		w.Expect(cfg.Options["args"]).NotTo(ContainSubstring("ignition"), "many users may read the arguments")
		for _, drive := range cfg.Drives().All() {
			w.Expect(drive.VolumeID).NotTo(ContainSubstring(".iso"), "it is not a drive")
		}

		// After the cleanup the VM starts without the file.
		w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
		w.ExpectNoBootDrives()
		w.ExpectNoTokens()
		c := w.Client
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
		w.Expect(w.VMConfig(in).Options["args"]).To(Equal(inherited))
		p.Delete(claim)
		w.ExpectNoOrphans()
	})
}

func TestDeleteIgnitionFile(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	useFirmware(w, butane)
	p := w.StartProcess(testenv.AsRoot())
	p.Delete(p.Launched("fw", w.NodeClass))
	w.ExpectNoOrphans()
}

func TestLaunchWithoutRootLogin(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	useFirmware(w, butane)
	before := w.StartProcess(testenv.AsRoot())
	claim, joined := before.Planned("fw", w.NodeClass), before.Launched("joined", w.NodeClass)
	after := w.StartProcess()
	err := after.Launch(claim, w.NodeClass)
	w.Expect(err).To(And(BeAssignableToTypeOf(&instance.LaunchError{}), MatchError(ContainSubstring("region "+testenv.Region+": the cloud config has no login of root"))))

	// The file stays, since the VM would not start without it; the token is deleted.
	err = after.Instances.Deleter.CleanupBootDrive(t.Context(), w.Stored(joined))
	w.Expect(err).To(MatchError(ContainSubstring("the cloud config has no login of root")))
	volumes, err := w.Client.Volumes(t.Context(), "pve1", "local", "iso")
	w.Expect(err).NotTo(HaveOccurred())
	found := false
	for _, volume := range volumes {
		found = found || strings.Contains(volume.ID, string(joined.UID))
	}
	w.Expect(found).To(BeTrue())
	tokens := &corev1.SecretList{}
	w.Expect(w.Kube.List(t.Context(), tokens, client.MatchingLabels{"karpenter.proxmox.sinextra.dev/nodeclaim-uid": string(joined.UID)})).To(Succeed())
	w.Expect(tokens.Items).To(BeEmpty())
}

func TestCheckFirmwareFormat(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	useFirmware(w, "#cloud-config\nhostname: a\n")
	w.Expect(w.StartProcess(testenv.NoPolling(), testenv.AsRoot()).CheckBootData(w.NodeClass)).To(MatchError(
		"user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition: write it in Butane or Ignition, or set type to cdrom"))
}
