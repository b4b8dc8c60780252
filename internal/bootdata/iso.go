// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// VolumeID is the label by which cloud-init's NoCloud source, Ignition's
// proxmoxve platform and Talos find the boot drive.
const VolumeID = "cidata"

// The image is ISO 9660 (ECMA-119) with one directory in two versions: with Rock Ridge
// names for Linux, and with Joliet names for guests that support only those (Windows).
// Both refer to the same file extents:
//
//	sector  0  system area (16 sectors, zeros)
//	       16  primary volume descriptor
//	       17  supplementary volume descriptor (Joliet)
//	       18  volume descriptor set terminator
//	       19  path tables: primary L and M, Joliet L and M
//	       23  root directory: primary, Joliet
//	       25  the files, each starting at a sector
const (
	sectorSize       = 2048
	primarySector    = 16
	jolietSector     = 17
	terminatorSector = 18
	pathTableSector  = 19 // L, then M; Joliet's two follow
	primaryRoot      = 23
	jolietRoot       = 24
	firstFileSector  = 25
	pathTableSize    = 10 // one record with a one-byte name
	directoryRecord  = 33 // fixed part, before the name
	flagDirectory    = 0x02
	jolietEscape     = "%/E" // Joliet level 3: UCS-2 with any length
	modeDirectory    = 0o040500
	modeFile         = 0o100400 // readable by root only if the drive is mounted
)

// isoFile is a file with the first sector of its content.
type isoFile struct {
	name    string
	content []byte
	sector  int
}

// ISO returns an image of the files with the volume ID cidata. It is created in memory,
// because the files are secret, and is deterministic. Empty network-config and
// vendor-data are omitted. It fails if a file is larger than MaxTotalBytes.
func (f Files) ISO() ([]byte, error) {
	files := make([]isoFile, 0, 4)
	// Both versions of the directory require this order.
	for _, file := range []isoFile{
		{name: MetaDataFile, content: f.MetaData},
		{name: NetworkConfigFile, content: f.NetworkConfig},
		{name: UserDataFile, content: f.UserData},
		{name: VendorDataFile, content: f.VendorData},
	} {
		// cloud-init ignores a NoCloud drive without one of these two.
		required := file.name == MetaDataFile || file.name == UserDataFile
		if required || len(file.content) > 0 {
			files = append(files, file)
		}
	}
	next := firstFileSector
	for i := range files {
		if len(files[i].content) > MaxTotalBytes {
			return nil, fmt.Errorf("packing %s: %d bytes, the limit is %d", files[i].name, len(files[i].content), MaxTotalBytes)
		}
		files[i].sector = next
		next += max(1, (len(files[i].content)+sectorSize-1)/sectorSize)
	}

	image := make([]byte, next*sectorSize)
	at := func(sector int) []byte { return image[sector*sectorSize : (sector+1)*sectorSize] }

	writeVolumeDescriptor(at(primarySector), next, false)
	writeVolumeDescriptor(at(jolietSector), next, true)
	copy(at(terminatorSector), "\xffCD001\x01") // ECMA-119 8.3
	for i, root := range []int{primaryRoot, jolietRoot} {
		little, big := at(pathTableSector+2*i), at(pathTableSector+2*i+1)
		writePathTable(little, binary.LittleEndian, root)
		writePathTable(big, binary.BigEndian, root)
	}
	writeDirectory(at(primaryRoot), primaryRecords(files))
	writeDirectory(at(jolietRoot), jolietRecords(files))
	for _, file := range files {
		copy(image[file.sector*sectorSize:], file.content)
	}
	return image, nil
}

// writeVolumeDescriptor writes a primary (ECMA-119 8.4) or supplementary (8.5) volume
// descriptor. The latter has UCS-2 text and refers to its own path tables and directory.
func writeVolumeDescriptor(d []byte, sectors int, joliet bool) {
	kind, tables, root := byte(1), pathTableSector, primaryRoot
	encode := func(s string) []byte { return []byte(s) }
	if joliet {
		kind, tables, root = 2, pathTableSector+2, jolietRoot
		encode = ucs2
		copy(d[88:], jolietEscape)
	}
	text := func(from, to int, s string) {
		field := d[from:to]
		blank := encode(" ")
		for i := range field {
			field[i] = blank[i%len(blank)]
		}
		copy(field, encode(s))
	}
	d[0] = kind
	copy(d[1:], "CD001\x01")
	text(8, 40, "") // system identifier
	text(40, 72, VolumeID)
	putBoth32(d[80:], sectors)
	putBoth16(d[120:], 1) // volume set size
	putBoth16(d[124:], 1) // volume sequence number
	putBoth16(d[128:], sectorSize)
	putBoth32(d[132:], pathTableSize)
	binary.LittleEndian.PutUint32(d[140:], uint32(tables))
	binary.BigEndian.PutUint32(d[148:], uint32(tables+1))
	copy(d[156:190], record("\x00", root, sectorSize, flagDirectory, nil))
	text(190, 813, "") // volume set, publisher, preparer, application and file identifiers
	for _, date := range []int{813, 830, 847, 864} {
		copy(d[date:], "0000000000000000") // ECMA-119 8.4.26.1: not specified
	}
	d[881] = 1 // file structure version
}

// writePathTable writes the one record of a path table (ECMA-119 9.4): the root.
func writePathTable(t []byte, order binary.ByteOrder, root int) {
	t[0] = 1 // length of the name
	order.PutUint32(t[2:], uint32(root))
	order.PutUint16(t[6:], 1) // its parent is itself
}

func writeDirectory(d []byte, records [][]byte) {
	offset := 0
	for _, r := range records {
		offset += copy(d[offset:], r)
	}
}

// primaryRecords returns the root directory with Rock Ridge entries, which contain the
// names and modes of the files.
func primaryRecords(files []isoFile) [][]byte {
	self := slices.Concat(suspIndicator(), rockRidgeMode(modeDirectory, 2), rockRidgeAnnouncement())
	records := [][]byte{
		record("\x00", primaryRoot, sectorSize, flagDirectory, self),
		record("\x01", primaryRoot, sectorSize, flagDirectory, rockRidgeMode(modeDirectory, 2)),
	}
	for _, f := range files {
		// ECMA-119 7.5: capitals, digits and underscores only, and a version.
		plain := strings.ReplaceAll(strings.ToUpper(f.name), "-", "_") + ".;1"
		extra := slices.Concat(rockRidgeMode(modeFile, 1), rockRidgeName(f.name))
		records = append(records, record(plain, f.sector, len(f.content), 0, extra))
	}
	return records
}

// jolietRecords returns the root directory with UCS-2 names.
func jolietRecords(files []isoFile) [][]byte {
	records := [][]byte{
		record("\x00", jolietRoot, sectorSize, flagDirectory, nil),
		record("\x01", jolietRoot, sectorSize, flagDirectory, nil),
	}
	for _, f := range files {
		records = append(records, record(string(ucs2(f.name)), f.sector, len(f.content), 0, nil))
	}
	return records
}

// recordDate is 2000-01-01 (ECMA-119 9.1.5). It is fixed so the image is deterministic.
const recordDate = "\x64\x01\x01\x00\x00\x00\x00"

// record returns a directory record (ECMA-119 9.1).
func record(name string, sector, size int, flags byte, systemUse []byte) []byte {
	length := directoryRecord + len(name)
	length += length % 2 // padding to an even length
	r := make([]byte, length, length+len(systemUse)+1)
	putBoth32(r[2:], sector)
	putBoth32(r[10:], size)
	copy(r[18:], recordDate)
	r[25] = flags
	putBoth16(r[28:], 1) // volume sequence number
	r[32] = byte(len(name))
	copy(r[directoryRecord:], name)
	r = append(r, systemUse...)
	if len(r)%2 != 0 {
		r = append(r, 0)
	}
	r[0] = byte(len(r))
	return r
}

// suspIndicator returns the start of the root's system use area (SUSP 5.3, "SP").
func suspIndicator() []byte { return []byte{'S', 'P', 7, 1, 0xbe, 0xef, 0} }

// rockRidgeAnnouncement returns the identifier of the extension (SUSP 5.5, "ER"). The
// optional descriptions are omitted because they would not fit into the record.
func rockRidgeAnnouncement() []byte {
	const id = "RRIP_1991A"
	return append([]byte{'E', 'R', byte(8 + len(id)), 1, byte(len(id)), 0, 0, 1}, id...)
}

// rockRidgeMode returns the POSIX mode and link count, with owner root (RRIP 4.1.1, "PX").
func rockRidgeMode(mode, links int) []byte {
	e := make([]byte, 36)
	copy(e, []byte{'P', 'X', 36, 1})
	putBoth32(e[4:], mode)
	putBoth32(e[12:], links)
	return e
}

// rockRidgeName returns the name of the file (RRIP 4.1.4, "NM").
func rockRidgeName(name string) []byte {
	return append([]byte{'N', 'M', byte(5 + len(name)), 1, 0}, name...)
}

// ucs2 encodes text for Joliet: two bytes per character, high byte first.
func ucs2(s string) []byte {
	out := make([]byte, 0, 2*len(s))
	for _, unit := range utf16.Encode([]rune(s)) {
		out = binary.BigEndian.AppendUint16(out, unit)
	}
	return out
}

// putBoth32 and putBoth16 write a number in both byte orders (ECMA-119 7.3.3, 7.2.3).
func putBoth32(b []byte, n int) {
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.BigEndian.PutUint32(b[4:], uint32(n))
}

func putBoth16(b []byte, n int) {
	binary.LittleEndian.PutUint16(b, uint16(n))
	binary.BigEndian.PutUint16(b[2:], uint16(n))
}
