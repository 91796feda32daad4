"""What multiplies: one `table`, rows derived from it in `groups`, where registers lie (`texels`) and what follows from
that (`texel_run`), f32 of shorter products (`precision`), exact covers by several kinds (`tessellation`), how roles
share a tile (`schemes`), and how fast each kind was (`rates`)."""
