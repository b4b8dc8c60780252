// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCommandsStartKubelet(t *testing.T) {
	t.Parallel()
	both, enabled, nothing := unitEffect{service: kubeletService, enable: true, start: true}, unitEffect{service: kubeletService, enable: true}, unitEffect{}
	agent := unitEffect{service: "k3s-agent", enable: true, start: true}
	for text, want := range map[string]unitEffect{
		"systemctl enable --now kubelet":                             both,
		"systemctl --now enable kubelet.service":                     both,
		"/usr/bin/systemctl restart containerd kubelet":              both,
		"sudo systemctl start kubelet":                               both,
		"LANG=C systemctl start kubelet":                             both,
		"systemctl daemon-reload && systemctl start kubelet":         both,
		"systemctl daemon-reload; \\\n systemctl start \\\n kubelet": both,
		`bash -c "swapoff -a; systemctl start kubelet"`:              both,
		`sh -ec "systemctl start kubelet"`:                           both,
		"if true; then systemctl start kubelet; fi":                  both,
		"systemctl enable kubelet":                                   enabled,
		"systemctl enable --now k3s-agent":                           agent,
		"systemctl stop kubelet":                                     nothing,
		"systemctl start containerd":                                 nothing,
		"# systemctl start kubelet":                                  nothing,
		"echo 'systemctl start kubelet'":                             nothing,
		"systemctl":                                                  nothing,
		"shutdown -h now":                                            {powerOff: true},
		"shutdown -r now":                                            nothing,
		"sync; systemctl poweroff":                                   {powerOff: true},
		"systemd-run --no-block -p A=b /opt/prepare.sh":              {powerOff: true},
		"":                     nothing,
		"/opt/join.sh --now":   both,
		"sh -eux /opt/join.sh": both,
		"/opt/loop.sh":         nothing,
	} {
		vm := newGuest(newDisk(map[string]string{
			"/opt/join.sh":    "#!/bin/sh\nset -e\nsystemctl enable --now kubelet\n",
			"/opt/prepare.sh": "#!/bin/sh\napt-get update\npoweroff\n",
			"/opt/loop.sh":    "#!/bin/sh\n/opt/loop.sh\n",
		}))
		NewWithT(t).Expect(vm.effectOfText(text, maxScriptDepth)).To(Equal(want), text)
	}
	script, _ := boot(t, newDisk(nil), seedWith(t, "i-1", "#!/bin/bash\nsystemctl start kubelet\n"))
	NewWithT(t).Expect(script.service).To(Equal(kubeletService), "a script as user-data")
}

func TestCommandsFiles(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(map[string]string{"/etc/config": "a: 1\n", "/etc/name": "worker\n"})
	vm := newGuest(disk)
	vm.serial = "h=default-abc;i=20001"
	vm.effectOfText(`echo "id: proxmox://home/$(sed 's/.*;i=//' /sys/class/dmi/id/product_serial)" >> /etc/config`, maxScriptDepth)
	g.Expect(disk.text("/etc/config")).To(Equal("a: 1\nid: proxmox://home/20001\n"))
	vm.effectOfText(`echo "$(cat /etc/name) $(cat /etc/none)$(rm -rf /)" > /etc/config; echo to nobody`, maxScriptDepth)
	g.Expect(disk.text("/etc/config")).To(Equal("worker $(rm -rf /)\n"))
	vm.effectOfText("echo 'b: 2' >> /etc/config; mv -f /etc/config /etc/b; mv /etc/none /etc/c", maxScriptDepth)
	g.Expect(disk.text("/etc/b")).To(Equal("worker $(rm -rf /)\nb: 2\n"))
	g.Expect(disk.Names()).NotTo(ContainElement("/etc/c"))
}

func TestUnitEnablesKubelet(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/etc/default/kubelet":                             true,
		"/etc/systemd/system/kubelet.service":              true,
		"/etc/systemd/system/kubelet.service.d/20-my.conf": true,
		"/etc/default/containerd":                          false,
	} {
		NewWithT(t).Expect(enablesKubelet(path)).To(Equal(want), path)
	}
}

func FuzzShellCommands(f *testing.F) {
	f.Add(`a "b c" 'd' # e`)
	f.Add("\"")
	f.Add("a\\\nb;;c||d")
	f.Fuzz(func(t *testing.T, text string) {
		for _, words := range shellCommands(text) {
			if len(words) == 0 {
				t.Fatal("got a command without words")
			}
		}
	})
}
