// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	ignition "github.com/coreos/ignition/v2/config"
	"github.com/coreos/ignition/v2/config/v3_7_experimental/types"
	"github.com/vincent-petithory/dataurl"
)

// ignitionResultFile is written at the first boot. Later boots do not run Ignition.
const ignitionResultFile = "/etc/.ignition-result.json"

const coreOS = "Container Linux (simulated)"

// ignite simulates Ignition in the initramfs of the first boot: it parses the config
// with Ignition's own parser and writes files and units. A failure ends the boot in
// an emergency shell.
func (g *guest) ignite(config []byte) (system, bool) {
	parsed, findings, err := ignition.Parse(config)
	if err != nil {
		g.console.printf("ignition: failed to parse config: %v; emergency mode\n%s", err, findings.String())
		return system{}, false
	}
	for _, f := range parsed.Storage.Filesystems {
		if _, exists := g.disks[f.Device]; !exists {
			g.console.printf("ignition: createFilesystems: device %s does not exist; emergency mode", f.Device)
			return system{}, false
		}
		if f.Path != nil && f.Format != nil {
			g.mount(f.Device, *f.Path, *f.Format)
		}
	}
	for _, file := range parsed.Storage.Files {
		if err := g.igniteFile(file); err != nil {
			g.console.printf("ignition: createFilesystemsFiles: %v; emergency mode", err)
			return system{}, false
		}
	}
	for _, link := range parsed.Storage.Links {
		g.storage.Write(path.Clean(link.Path), nil)
	}
	for _, unit := range parsed.Systemd.Units {
		g.igniteUnit(unit)
	}
	g.storage.Write(ignitionResultFile, []byte("{}"))
	g.console.printf("ignition: done, %d files and %d units", len(parsed.Storage.Files), len(parsed.Systemd.Units))
	return g.ignited(), true
}

func (g *guest) igniteFile(file types.File) error {
	content, err := g.fetch(file.Contents)
	if err != nil {
		return fmt.Errorf("%s: %w", file.Path, err)
	}
	for _, resource := range file.Append {
		more, err := g.fetch(resource)
		if err != nil {
			return fmt.Errorf("%s: %w", file.Path, err)
		}
		content = append(content, more...)
	}
	g.storage.Write(path.Clean(file.Path), content)
	return nil
}

// fetch decodes data URLs. It does not download other URLs: they usually contain
// programs, which the guest does not run.
func (g *guest) fetch(resource types.Resource) ([]byte, error) {
	if resource.Source == nil || *resource.Source == "" {
		return nil, nil
	}
	if !strings.HasPrefix(*resource.Source, "data:") {
		return []byte("fetched from " + *resource.Source), nil
	}
	decoded, err := dataurl.DecodeString(*resource.Source)
	if err != nil {
		return nil, fmt.Errorf("decoding data URL: %w", err)
	}
	if resource.Compression != nil && *resource.Compression == "gzip" {
		return gunzip(decoded.Data)
	}
	return decoded.Data, nil
}

func (g *guest) igniteUnit(unit types.Unit) {
	name := "/etc/systemd/system/" + unit.Name
	if unit.Contents != nil {
		g.storage.Write(name, []byte(*unit.Contents))
	}
	for _, dropin := range unit.Dropins {
		if dropin.Contents != nil {
			g.storage.Write(name+".d/"+dropin.Name, []byte(*dropin.Contents))
		}
	}
	masked := unit.Mask != nil && *unit.Mask
	if s, known := serviceOf(unit.Name); known && unit.Enabled != nil && *unit.Enabled && !masked {
		g.enable(s)
	}
}

// ignited returns the system that Ignition configured at the first boot.
func (g *guest) ignited() system {
	name, _ := g.storage.Read(hostnameFile)
	out := system{hostname: strings.ToLower(strings.TrimSpace(string(name))), service: g.enabled(""), image: coreOS}
	if out.hostname == "" {
		out.hostname = "localhost"
	}
	devices := append(networkdDevices(g.storage), networkManagerDevices(g.storage)...)
	var err error
	if len(devices) == 0 {
		out.addresses, err = g.configureNetwork(nil)
	} else {
		out.addresses, err = g.addressesOf(devices)
	}
	if err != nil {
		g.console.printf("network: %v", err)
	}
	if missing := g.missingProgram(out.service); missing != "" {
		g.console.printf("%s.service: failed to execute %s: no such file or directory", out.service, missing)
		out.service = ""
	}
	return g.up(out)
}

// missingProgram returns the program that a unit runs if the image does not contain
// it: these images have no kubelet.
func (g *guest) missingProgram(s service) string {
	if s == "" {
		return ""
	}
	unit, _ := g.storage.Read("/etc/systemd/system/" + string(s) + ".service")
	for line := range bytes.Lines(unit) {
		command, found := bytes.CutPrefix(line, []byte("ExecStart="))
		if !found {
			continue
		}
		program, _, _ := strings.Cut(strings.TrimSpace(string(command)), " ")
		if _, there := g.storage.Read(program); !there {
			return program
		}
		return ""
	}
	return string(s)
}
